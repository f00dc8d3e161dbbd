"""Rewards, groups and files of NeMo Gym rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curation.formats.gym_lines import (
    import_rollout,
    message_item,
    read,
    request,
    response,
    rollout,
    system,
    user,
    write_lines,
)
from ludus.curation.formats.run_import import FORMATS, find_import_files
from ludus.data.episode import Episode, StopReason
from ludus.errors import RunError


def attempt(**more: Any) -> dict[str, Any]:
    return rollout([user(more.pop("asked_for", "Owl?"))], [message_item("A bird.")], **more)


def groups(folder: Path, *lines: dict[str, Any]) -> list[str]:
    return [episode.group_id for episode in read(folder, *lines) if isinstance(episode, Episode)]


def test_a_masked_sample_is_kept_and_unscored(tmp_path: Path) -> None:
    for masked in ({"mask_sample": True}, {"instance_config": {"mask_sample": True}}):
        episode = import_rollout(tmp_path, attempt(reward=0.0, **masked))
        assert (episode.reward, episode.broken, len(episode.messages)) == (None, False, 2)


def test_a_masked_sample_with_a_reason_is_broken(tmp_path: Path) -> None:
    why = {"failure_kind": "sandbox_oom", "failure_reason": "out of memory"}
    episode = import_rollout(tmp_path, attempt(reward=0.0, mask_sample=True, **why))
    assert episode.error is not None and episode.broken and episode.reward is None
    assert (episode.error.kind, episode.error.message) == ("sandbox_oom", "out of memory")


def test_a_scored_sample_with_an_error_keeps_its_reward(tmp_path: Path) -> None:
    assert import_rollout(tmp_path, attempt(reward=0.0, failure_kind="slow_judge")).reward == 0.0
    assert import_rollout(tmp_path, attempt(reward=0.5, error="a warning")).reward == 0.5
    assert import_rollout(tmp_path, attempt(reward=1.0, exception_type="Late")).reward == 1.0


@pytest.mark.parametrize(
    ("more", "kind", "where", "message"),
    [
        (
            {"_ng_failure_class": "judge_failed", "_ng_failure_judge_error": "TimeoutError: 60 s"},
            *("judge_failed", "environment", "TimeoutError: 60 s"),
        ),
        (
            {"_ng_failure_class": "transient", "error_message": "503", "error_stage": "agent"},
            *("transient", "model", "503"),
        ),
        ({"error": "RayActorError: died"}, *("error", "environment", "RayActorError: died")),
        (
            {"exception_type": "AgentTimeoutError", "exception_message": "after 60 s"},
            *("AgentTimeoutError", "environment", "after 60 s"),
        ),
        ({"exception_type": "OSError"}, *("OSError", "environment", "OSError")),
        ({"replied": {"status": "failed"}}, *("failed", "model", "failed")),
        (
            {"replied": {"error": {"code": "server_error", "message": "overloaded"}}},
            *("server_error", "model", "overloaded"),
        ),
    ],
)
def test_faults_are_unscored(
    tmp_path: Path, more: dict[str, Any], kind: str, where: str, message: str
) -> None:
    episode = import_rollout(tmp_path, attempt(reward=0.0, **more))
    assert (episode.stop_reason, episode.reward, episode.done) == (StopReason.BROKEN, None, False)
    assert episode.error is not None
    assert (episode.error.kind, episode.error.where, episode.error.message) == (
        kind,
        where,
        message,
    )


def test_a_failure_without_a_response(tmp_path: Path) -> None:
    line = {
        "_ng_failure_class": "environment_server_failed",
        "_ng_failure_message": "no answer",
        "_ng_failure_stage": "agent",
        "_ng_failure_partial_response": response([message_item("I was")]),
        "_ng_task_index": 4,
        "agent_ref": {"name": "words_agent"},
    }
    episode = import_rollout(tmp_path, line)
    assert [message.text for message in episode.messages] == ["I was"]
    assert episode.error is not None and episode.error.message == "no answer"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"replied": {"incomplete_details": {"reason": "max_output_tokens"}}}, "max_tokens"),
        ({"replied": {"status": "incomplete"}}, "max_tokens"),
        ({"replied": {"incomplete_details": {"reason": "content_filter"}}}, "refused"),
        ({"finished_naturally": False, "turns_used": 9}, "max_turns"),
        ({"terminated": False, "truncated": True}, "max_turns"),
        ({"finished_naturally": True, "turns_used": 2}, "done"),
    ],
)
def test_stop_reasons(tmp_path: Path, more: dict[str, Any], reason: str) -> None:
    episode = import_rollout(tmp_path, attempt(reward=0.0, **more))
    assert (episode.stop_reason, episode.reward) == (reason, 0.0)
    assert episode.done is (reason == "done")


def test_a_refusal_is_text_and_a_stop_reason(tmp_path: Path) -> None:
    no = {"role": "assistant", "type": "message", "content": [{"type": "refusal", "refusal": "No"}]}
    episode = import_rollout(tmp_path, rollout("Owl?", [no], reward=0.0))
    assert (episode.messages[-1].text, episode.stop_reason) == ("No", StopReason.REFUSED)


def test_reward_components(tmp_path: Path) -> None:
    parts = {"reward_components": {"correct": 1.0, "brief": 0}, "library_reward": 0.5, "wer": 3.0}
    episode = import_rollout(tmp_path, attempt(**parts))
    assert episode.rewards == {"correct": 1.0, "brief": 0.0, "library_reward": 0.5}
    assert episode.task == {"wer": 3.0, "_ng_task_index": 0}


def test_groups_do_not_depend_on_sampling(tmp_path: Path) -> None:
    seeds = [{"metadata": {"extra_body": f'{{"seed": {seed}}}'}} for seed in (1, 2)]
    warm = [{"temperature": 0.1, **seeds[0]}, {"temperature": 0.9, **seeds[1]}]
    first, second = groups(tmp_path, *(attempt(asked=asked) for asked in warm))
    assert first == second


def test_the_same_index_with_another_prompt_is_another_group(tmp_path: Path) -> None:
    owl, fowl, again = groups(tmp_path, attempt(), attempt(asked_for="Fowl?"), attempt())
    assert owl == again != fowl


def test_the_same_prompt_with_another_index_is_another_group(tmp_path: Path) -> None:
    first, second = groups(tmp_path, attempt(), attempt(_ng_task_index=1))
    assert first != second


def test_groups_without_indices_are_by_request(tmp_path: Path) -> None:
    lines = [attempt(), attempt(asked_for="Fowl?"), attempt(score=0.3)]
    for line in lines:
        del line["_ng_task_index"]
    owl, fowl, again = groups(tmp_path, *lines)
    assert owl == again != fowl


def test_groups_without_indices_and_prompts_are_by_task_id(tmp_path: Path) -> None:
    lines = [rollout([system("Play.")], [message_item("x")], task_id=name) for name in "aba"]
    for line in lines:
        del line["_ng_task_index"]
    first, other, again = groups(tmp_path, *lines)
    assert first == again != other


def test_the_inputs_file_tells_the_fields_of_the_task(tmp_path: Path) -> None:
    line = attempt(expected_answer="bird", extracted_answer="fish", judge_evaluations=None)
    given = {"responses_create_params": request("Owl?"), "expected_answer": "bird"}
    write_lines(tmp_path / "rollouts_materialized_inputs.jsonl", "{", given)
    assert import_rollout(tmp_path, line).task == {"expected_answer": "bird", "_ng_task_index": 0}


def test_rollouts_are_found_in_folders(tmp_path: Path) -> None:
    given = {"responses_create_params": request("Owl?")}
    rollouts = [
        write_lines(tmp_path / "r.jsonl", "{", attempt()),
        write_lines(tmp_path / "r_failures.jsonl", {"_ng_failure_class": "timeout"}),
    ]
    given_file = write_lines(tmp_path / "example.jsonl", given)
    write_lines(tmp_path / "r_agent_metrics.json", {"mean/reward": 1.0})
    write_lines(tmp_path / "r_materialized_inputs.jsonl", {**given, "_ng_task_index": 0})
    write_lines(tmp_path / "rollout_verdicts.jsonl", {"_ng_task_index": 0, "verdict": "ok"})
    assert find_import_files(FORMATS["nemo-gym"], tmp_path) == rollouts
    assert find_import_files(FORMATS["nemo-gym"], given_file) == [given_file]


def test_a_folder_without_rollouts_raises(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="jsonl"):
        find_import_files(FORMATS["nemo-gym"], tmp_path)
