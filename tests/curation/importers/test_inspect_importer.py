"""Import of Inspect AI samples; see `inspect_logs` for the origin of the files."""

import json
from pathlib import Path
from typing import Any

import pytest

from curation.importers.inspect_logs import (
    COLOURS,
    EPOCHS,
    FAILED,
    build_sample,
    episodes,
    one,
    write_log,
)
from ludus.curation.importers.inspect_importer import InspectImporter
from ludus.data.episode import Episode, Fault, StopReason, Usage
from ludus.data.messages import ImagePart
from ludus.errors import RunError


def named(path: Path) -> dict[Any, Episode]:
    return {episode.task["id"]: episode for episode in episodes(path)}


def test_messages_and_tools_of_a_sample() -> None:
    grass = named(FAILED)[2]
    assert [(message.role, message.text) for message in grass.messages] == [
        ("system", "Answer with one word."),
        ("user", "What colour is grass?"),
        ("assistant", ""),
        ("tool", "green is a colour"),
        ("assistant", "green"),
    ]
    call = (grass.messages[2].tool_calls or ())[0]
    assert (call.id, call.function.name) == ("c1", "look_up")
    assert json.loads(call.function.arguments) == {"word": "green"}
    assert (grass.messages[3].tool_call_id, grass.messages[3].name) == ("c1", "look_up")
    assert [tool["function"]["name"] for tool in grass.tools] == ["look_up"]
    assert grass.tools[0]["function"]["parameters"]["required"] == ["word"]


def test_the_task_has_id_target_and_metadata() -> None:
    assert named(FAILED)["sky"].task == {"id": "sky", "target": "blue", "metadata": {"level": 1}}
    assert named(FAILED)[2].task == {"id": 2, "target": ["green", "Green"]}


def test_environment_and_agent_come_from_the_header() -> None:
    sky = named(FAILED)["sky"]
    assert sky.environment == "colours"
    assert sky.agent == {"provider": "mockllm", "model": "model", "temperature": 0.5}


def test_reasoning_is_separate_from_content() -> None:
    answer = named(FAILED)["sky"].messages[-1]
    assert (answer.content, answer.reasoning_content) == ("blue", "Rayleigh.")


def test_a_failed_log_yields_its_samples() -> None:
    assert {key: episode.reward for key, episode in named(FAILED).items()} == {
        "sky": 1.0,
        2: 1.0,
        "breaks": None,
    }


def test_a_sample_with_an_error_is_broken() -> None:
    broken = named(FAILED)["breaks"]
    assert (broken.stop_reason, broken.done) == (StopReason.BROKEN, False)
    assert broken.error == Fault(
        kind="RuntimeError",
        where="environment",
        message="RuntimeError('the sandbox fell over')",
    )


def test_an_error_after_a_failed_request_is_the_models(tmp_path: Path) -> None:
    error = {"message": "no answer", "traceback": "Traceback:\nopenai.APITimeoutError: no answer\n"}
    event = {"event": "model", "model": "mockllm/model", "error": "no answer"}
    broken = one(tmp_path, error=error, events=[event])
    assert broken.error == Fault(kind="APITimeoutError", where="model", message="no answer")


def test_a_broken_sample_is_unscored_even_with_a_score(tmp_path: Path) -> None:
    assert one(tmp_path, error={"message": "ValueError('x')"}).reward is None


def test_an_invalidated_sample_is_unscored(tmp_path: Path) -> None:
    invalid = one(tmp_path, invalidation={"author": "us", "reason": "a wrong target"})
    assert (invalid.reward, invalid.rewards["match"]) == (None, 1.0)


def test_epochs_of_a_sample_are_one_group() -> None:
    first, second = episodes(EPOCHS)
    assert first.group_id == second.group_id
    assert first.episode_id != second.episode_id


def test_the_group_is_the_same_in_every_run() -> None:
    assert named(FAILED)["sky"].group_id == episodes(EPOCHS)[0].group_id


def test_the_same_id_with_another_input_is_another_group(tmp_path: Path) -> None:
    other = one(tmp_path, input="What colour is the sea?")
    assert other.group_id != named(FAILED)["sky"].group_id


def test_usage_is_that_of_the_evaluated_model(tmp_path: Path) -> None:
    assert episodes(EPOCHS)[0].usage == Usage(
        prompt_tokens=13, cached_tokens=3, completion_tokens=2, reasoning_tokens=1, cost=0.001
    )
    own = {"input_tokens": 7, "input_tokens_cache_write": 2, "output_tokens": 1}
    usage = {"mockllm/model": own, "openai/grader": {"input_tokens": 100}}
    assert one(tmp_path, model_usage=usage).usage == Usage(prompt_tokens=9, completion_tokens=1)


def test_time_is_split_between_model_and_tools() -> None:
    timing = episodes(EPOCHS)[0].timing
    assert timing is not None
    assert timing.started_at < timing.ended_at
    assert 0 < timing.model_s < (timing.ended_at - timing.started_at).total_seconds()
    assert named(FAILED)["sky"].timing is None, "0.3.110 did not say when a sample was played"


@pytest.mark.parametrize(
    ("limit", "reason", "reward"),
    [
        ("token", StopReason.MAX_TOKENS, 1.0),
        ("context", StopReason.MAX_TOKENS, 1.0),
        ("cost", StopReason.MAX_TOKENS, 1.0),
        ("message", StopReason.MAX_TURNS, 1.0),
        ("turn", StopReason.MAX_TURNS, 1.0),
        ("custom", StopReason.DONE, 1.0),
        ("time", StopReason.DEADLINE, None),
        ("working", StopReason.DEADLINE, None),
        ("operator", StopReason.BROKEN, None),
    ],
)
def test_a_limit_is_the_stop_reason(
    tmp_path: Path, limit: str, reason: StopReason, reward: float | None
) -> None:
    episode = one(tmp_path, limit={"type": limit, "limit": 1.0})
    assert (episode.stop_reason, episode.reward) == (reason, reward)


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("stop", StopReason.DONE),
        ("max_tokens", StopReason.MAX_TOKENS),
        ("model_length", StopReason.MAX_TOKENS),
        ("content_filter", StopReason.REFUSED),
    ],
)
def test_the_finish_reason_of_the_last_reply(tmp_path: Path, last: str, reason: StopReason) -> None:
    assert one(tmp_path, output={"choices": [{"stop_reason": last}]}).stop_reason is reason


def test_attachments_are_resolved(tmp_path: Path) -> None:
    picture = {"type": "image", "image": "attachment://a"}
    message = [
        {"role": "user", "content": [{"type": "text", "text": "attachment://b"}, picture]},
        {"role": "assistant", "content": "red"},
    ]
    stored = {"a": "data:image/png;base64,AAAA", "b": "What colour is this?"}
    first = one(tmp_path, messages=message, attachments=stored).messages[0]
    assert first.text == "What colour is this?\n[image]"
    assert isinstance(first.content[1], ImagePart)
    assert first.content[1].image_url.url == "data:image/png;base64,AAAA"


def test_the_error_of_a_tool_is_its_result(tmp_path: Path) -> None:
    error = {"type": "timeout", "message": "too slow"}
    tool = {"role": "tool", "content": "", "function": "look_up", "error": error}
    assert one(tmp_path, messages=[tool]).messages[0].content == "Error: too slow"


def test_a_call_with_a_parse_error_is_malformed(tmp_path: Path) -> None:
    read_well = {"id": "a", "function": "look_up", "arguments": {"word": "red"}}
    wrong = "Error parsing the following tool call arguments: {word: EOF"
    unread = {"id": "b", "function": "look_up", "arguments": {}, "parse_error": "attachment://e"}
    message = {"role": "assistant", "content": "", "tool_calls": [read_well, unread]}
    episode = one(tmp_path, messages=[message], attachments={"e": wrong})
    assert (episode.tool_calls, episode.malformed_calls) == (2, 1)
    calls = episode.messages[0].tool_calls or ()
    assert [call.function.arguments for call in calls] == ['{"word": "red"}', wrong]


def test_built_in_tools_of_the_provider_become_text(tmp_path: Path) -> None:
    search = {"type": "tool_use", "name": "web_search", "arguments": "{}", "result": "found"}
    hidden = {"type": "reasoning", "reasoning": "xyz", "redacted": True, "summary": "I looked."}
    content = [hidden, search, {"type": "data", "data": {}}, {"type": "text", "text": "There."}]
    message = one(tmp_path, messages=[{"role": "assistant", "content": content}]).messages[0]
    assert (message.text, message.reasoning_content) == (
        "[web_search {}]\nfound\nThere.",
        "I looked.",
    )


def test_a_sample_with_audio_is_unreadable(tmp_path: Path) -> None:
    sound = [{"role": "user", "content": [{"type": "audio", "audio": "x", "format": "wav"}]}]
    path = write_log(tmp_path, build_sample(messages=sound), build_sample())
    record, episode = InspectImporter().read_episodes(path)
    assert str(record).startswith(f"{path}: sample 'sky', epoch 1:") and "'audio'" in str(record)
    assert isinstance(episode, Episode)


def test_api_keys_in_settings_are_dropped(tmp_path: Path) -> None:
    log = json.loads(EPOCHS.read_text())
    log["plan"]["config"] = {"temperature": 1, "extra_headers": {"x-api-key": "secret"}}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log))
    assert episodes(path)[0].agent == {"provider": "mockllm", "model": "model", "temperature": 1}


def test_logs_are_found_in_folders(tmp_path: Path) -> None:
    assert InspectImporter().find_files(FAILED) == [FAILED]
    with pytest.raises(RunError, match=r"inspect eval"):
        InspectImporter().find_files(tmp_path)
    inner = tmp_path / "logs"
    inner.mkdir()
    logs = [inner / "2026-11-15T08-10-36-00-00_colours_x.json", inner / "b.eval"]
    for file in [*logs, inner / "eval-set.json"]:
        file.touch()
    assert InspectImporter().find_files(tmp_path) == logs
    assert InspectImporter().unread_files(tmp_path) == [inner / "eval-set.json"]


def test_a_log_of_the_current_version() -> None:
    pytest.importorskip("zstandard")
    episodes_by_id = named(COLOURS)
    assert {
        key: (episode.stop_reason, episode.reward) for key, episode in episodes_by_id.items()
    } == {
        "sky": (StopReason.DONE, 1.0),
        2: (StopReason.DONE, 1.0),
        "loops": (StopReason.MAX_TURNS, 0.0),
        "long": (StopReason.MAX_TOKENS, 0.0),
        "breaks": (StopReason.BROKEN, None),
        "nobody-knows": (StopReason.DONE, 0.0),
    }
    assert episodes_by_id[2].messages[4].content == "Error: No such word."
    assert isinstance(episodes_by_id["nobody-knows"].messages[1].content[1], ImagePart)
    assert "brevity" not in episodes_by_id["nobody-knows"].rewards, "a score of NaN is no score"
