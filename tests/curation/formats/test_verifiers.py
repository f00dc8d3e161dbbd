"""Import of results of verifiers; see `verifiers_lines` for the origin of the files."""

import json
from pathlib import Path

import pytest

from curation.formats.verifiers_lines import (
    FILES,
    RESULTS,
    TRACES,
    build_trace,
    episodes,
    lines,
    write_lines,
)
from ludus.curation.formats.base import UnreadableRecord
from ludus.curation.formats.run_import import FORMATS, find_files
from ludus.curation.formats.verifiers import read_verifiers
from ludus.data.episode import Episode, Fault, StopReason, Usage
from ludus.errors import RunError

ROLES = ["system", "user", "assistant", "tool", "assistant"]


def test_a_result_has_prompt_and_completion() -> None:
    first = episodes(RESULTS)[0]
    assert [message.role for message in first.messages] == ROLES
    call = (first.messages[2].tool_calls or ())[0]
    assert (call.id, call.function.name, call.function.arguments) == (
        "c1",
        "look_up",
        '{"word": "sky"}',
    )
    assert first.messages[3].tool_call_id == "c1"
    assert [tool["function"]["name"] for tool in first.tools] == ["look_up"]
    assert first.task == {"example_id": 0, "answer": "blue", "info": {"level": 1}}
    assert (first.turns, first.tool_calls, first.malformed_calls) == (2, 1, 0)


def test_environment_and_model_come_from_the_metadata() -> None:
    first = episodes(RESULTS)[0]
    assert first.environment == "colours"
    assert first.agent == {"model": "tiny", "temperature": 0.5}


def test_metrics_are_reward_parts() -> None:
    first = episodes(RESULTS)[0]
    assert first.reward == 1.0
    assert first.rewards == {
        "correct": 1.0,
        "brief": 0.5,
        "num_turns": 2.0,
        "total_tool_calls": 1.0,
        "look_up_calls": 1.0,
    }


def test_results_of_one_example_are_one_group() -> None:
    sky, again, story, *_ = episodes(RESULTS)
    assert sky.group_id == again.group_id != story.group_id


def test_the_same_index_with_other_arguments_is_another_group(tmp_path: Path) -> None:
    line = {"example_id": 0, "prompt": "?", "completion": "!", "reward": 1}
    path = write_lines(tmp_path, line, name="results.jsonl")
    groups = set()
    for seed in (1, 2):
        run = {"env_id": "e", "env_args": {"seed": seed}}
        (tmp_path / "metadata.json").write_text(json.dumps(run))
        groups.add(episodes(path)[0].group_id)
    assert len(groups) == 2


def test_a_result_with_an_error_is_broken() -> None:
    saved = list(lines(RESULTS))[3]
    assert saved["reward"] == 0.0
    broken = episodes(RESULTS)[3]
    assert (broken.stop_reason, broken.reward, broken.done) == (StopReason.BROKEN, None, False)
    assert broken.error == Fault(
        kind="ModelError",
        where="model",
        message="ModelError() -> BadRequestError('Error code: 400 - no such luck')",
    )


def test_an_error_may_also_be_a_string(tmp_path: Path) -> None:
    line = {"prompt": "?", "completion": None, "reward": 0.0, "error": "ToolError('no such tool')"}
    error = episodes(write_lines(tmp_path, line, name="results.jsonl"))[0].error
    assert error == Fault(
        kind="ToolError", where="environment", message="ToolError('no such tool')"
    )


def test_a_nan_reward_is_unscored(tmp_path: Path) -> None:
    line = {"prompt": "?", "completion": "!", "reward": float("nan")}
    assert episodes(write_lines(tmp_path, line, name="results.jsonl"))[0].reward is None


def test_a_huge_reward_and_invalid_calls_are_unreadable(tmp_path: Path) -> None:
    call = {"role": "assistant", "tool_calls": 7}
    huge = {"prompt": "?", "completion": "!", "reward": 10**400}
    odd = {"prompt": [], "completion": [call], "reward": 0}
    path = write_lines(tmp_path, huge, odd, name="results.jsonl")
    first, second = (str(item) for item in read_verifiers(path))
    assert first.startswith(f"{path}:1: reward ") and second.startswith(f"{path}:2: tool_calls ")


def test_a_truncated_result_ran_out_of_tokens() -> None:
    assert episodes(RESULTS)[2].stop_reason is StopReason.MAX_TOKENS


@pytest.mark.parametrize(
    ("condition", "reason", "reward"),
    [
        ("max_turns_reached", StopReason.MAX_TURNS, 0.5),
        ("prompt_too_long", StopReason.MAX_TOKENS, 0.5),
        ("timeout_reached", StopReason.DEADLINE, None),
        ("no_tools_called", StopReason.DONE, 0.5),
        ("a_rule_of_its_own", StopReason.DONE, 0.5),
    ],
)
def test_the_stop_condition_is_the_stop_reason(
    tmp_path: Path, condition: str, reason: StopReason, reward: float | None
) -> None:
    line = {"prompt": "?", "completion": "!", "reward": 0.5, "stop_condition": condition}
    episode = episodes(write_lines(tmp_path, line, name="results.jsonl"))[0]
    assert (episode.stop_reason, episode.reward) == (reason, reward)
    assert episode.done is (reason is StopReason.DONE)


def test_usage_of_a_result() -> None:
    first = episodes(RESULTS)[0]
    assert first.usage == Usage(prompt_tokens=24, completion_tokens=6)


def test_text_completions_are_two_messages(tmp_path: Path) -> None:
    line = {"prompt": "Once upon", "completion": " a time", "reward": None}
    episode = episodes(write_lines(tmp_path, line, name="results.jsonl"))[0]
    messages = [(message.role, message.text) for message in episode.messages]
    assert messages == [("user", "Once upon"), ("assistant", " a time")]
    assert episode.reward is None


def test_api_keys_in_settings_are_dropped(tmp_path: Path) -> None:
    sampling = {"temperature": 1, "extra_headers": {"Authorization": "Bearer secret"}}
    (tmp_path / "metadata.json").write_text(json.dumps({"sampling_args": sampling}))
    line = {"prompt": "?", "completion": "!", "reward": 1}
    assert episodes(write_lines(tmp_path, line, name="results.jsonl"))[0].agent == {
        "temperature": 1
    }


def test_unreadable_lines_are_reported(tmp_path: Path) -> None:
    around = {"nodes": [{"parent": 0, "message": {"role": "user"}}]}
    path = write_lines(tmp_path, {"a": 1}, {"traces": [around]}, {"traces": []}, build_trace())
    *unreadable, last = read_verifiers(path)
    assert [item.line for item in unreadable if isinstance(item, UnreadableRecord)] == [1, 2, 3]
    assert isinstance(last, Episode)


def test_damaged_metadata_is_reported_and_results_are_read(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path, {"prompt": "?", "completion": "!", "reward": 1}, name="results.jsonl"
    )
    (tmp_path / "metadata.json").write_text("{")
    record, episode = read_verifiers(path)
    assert isinstance(record, UnreadableRecord) and record.path.name == "metadata.json"
    assert isinstance(episode, Episode) and episode.environment == "verifiers"


def test_results_and_traces_are_found_in_folders(tmp_path: Path) -> None:
    assert find_files(FORMATS["verifiers"], RESULTS) == [RESULTS]
    assert find_files(FORMATS["verifiers"], FILES) == sorted([RESULTS, TRACES])
    (tmp_path / "eval.log").touch()
    with pytest.raises(RunError, match=r"traces\.jsonl"):
        find_files(FORMATS["verifiers"], tmp_path)
