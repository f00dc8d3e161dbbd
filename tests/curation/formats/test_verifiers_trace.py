"""Import of traces of verifiers; see `verifiers_lines` for the origin of the files."""

from pathlib import Path
from typing import Any

from curation.formats.verifiers_lines import (
    TRACES,
    build_trace,
    episodes,
    lines,
    write_lines,
)
from ludus.data.episode import Fault, StopReason, Usage


def test_a_trace_is_read_from_root_to_leaf() -> None:
    first = episodes(TRACES)[0]
    assert [(message.role, message.text) for message in first.messages] == [
        ("system", "Answer with one word."),
        ("user", "What colour is the sky?"),
        ("assistant", ""),
        ("tool", "sky is a colour"),
        ("assistant", "blue"),
    ]
    assert [tool["function"]["name"] for tool in first.tools] == ["look_up"]
    assert first.environment == "colours_v1"
    assert first.agent == {"model": "tiny", "role": "agent", "temperature": 0.5}
    assert first.task["answer"] == "blue"


def test_the_reward_of_a_trace_is_the_weighted_sum() -> None:
    first = episodes(TRACES)[0]
    assert first.reward == 1.25
    assert first.rewards == {"correct": 1.0, "brief": 0.25, "length": 4.0}


def test_traces_of_one_task_are_one_group() -> None:
    sky, again, *_, leaf = episodes(TRACES)
    assert sky.group_id == again.group_id != leaf.group_id


def test_every_branch_of_a_trace_is_an_episode() -> None:
    one, other = episodes(TRACES)[2:4]
    system, answer = "Answer with one word.", "green"
    assert [message.text for message in one.messages] == [system, "What colour is grass?", answer]
    rewritten = "So far: plants. What colour is grass?"
    assert [message.text for message in other.messages] == [system, rewritten, answer]
    assert one.messages[-1].reasoning_content == "Plants are."
    assert (one.reward, other.reward) == (1.25, 1.25)
    assert one.episode_id.removesuffix("-0") == other.episode_id.removesuffix("-1")


def test_usage_before_a_fork_is_counted_once(tmp_path: Path) -> None:
    def node(parent: int | None, role: str) -> dict[str, Any]:
        return {"parent": parent, "message": {"role": role, "content": role}}

    tree = [node(None, "user"), node(0, "assistant"), node(1, "user"), node(1, "user")]
    count = {"prompt_tokens": 8, "cached_input_tokens": 4, "completion_tokens": 3, "cost": 0.5}
    calls = [{"node": 1, "usage": count}, {"node": None, "error": {"type": "ProviderError"}}]
    branches = episodes(write_lines(tmp_path, build_trace(nodes=tree, calls=calls)))
    paid = Usage(prompt_tokens=12, cached_tokens=4, completion_tokens=3, cost=0.5)
    assert [episode.usage for episode in branches] == [paid, Usage()]
    assert [len(episode.messages) for episode in branches] == [3, 3]


def test_a_null_reward_is_unscored(tmp_path: Path) -> None:
    for rewards in ({"correct": None}, {"correct": None, "brief": {"score": 1.0}}, {}):
        assert episodes(write_lines(tmp_path, build_trace(rewards=rewards)))[0].reward is None


def test_a_trace_that_could_not_be_scored_is_broken() -> None:
    leaf = list(lines(TRACES))[-1]["traces"][0]
    assert leaf["rewards"] == {"brief": None, "correct": None}
    broken = episodes(TRACES)[-1]
    assert (broken.stop_reason, broken.reward) == (StopReason.BROKEN, None)
    assert broken.error is not None
    assert (broken.error.kind, broken.error.where) == ("TaskError", "environment")
    assert [message.text for message in broken.messages][-1] == "green"


def test_errors_of_earlier_attempts_are_ignored(tmp_path: Path) -> None:
    trace = build_trace(errors=[{"type": "SandboxError", "message": "lost"}])
    assert episodes(write_lines(tmp_path, trace))[0].error is None


def test_a_timed_out_trace_is_unscored(tmp_path: Path) -> None:
    trace = build_trace(is_timeout=True, ok=False, stop_condition="agent_timeout")
    late = episodes(write_lines(tmp_path, trace))[0]
    assert (late.stop_reason, late.reward, late.error) == (StopReason.DEADLINE, None, None)


def test_a_trace_that_failed_without_an_error_is_broken(tmp_path: Path) -> None:
    assert (
        episodes(write_lines(tmp_path, build_trace(ok=False)))[0].stop_reason is StopReason.BROKEN
    )


def test_a_dropped_trace_is_unscored(tmp_path: Path) -> None:
    dropped = episodes(write_lines(tmp_path, build_trace(dropped="a duplicate")))[0]
    assert (dropped.stop_reason, dropped.reward) == (StopReason.DONE, None)


def test_an_error_of_the_environment_breaks_every_trace_in_it(tmp_path: Path) -> None:
    line = next(lines(TRACES)) | {"ok": False, "errors": [{"type": "EnvError", "message": "no"}]}
    episode = episodes(write_lines(tmp_path, line))[0]
    assert episode.error == Fault(kind="EnvError", where="environment", message="no")
    assert (episode.reward, len(episode.messages)) == (None, 5)


def test_another_role_is_another_group(tmp_path: Path) -> None:
    judge = build_trace(agent={"name": "judge", "config": {"model": "tiny"}})
    branches = episodes(write_lines(tmp_path, build_trace(), judge))
    assert branches[0].group_id != branches[1].group_id
    assert branches[1].agent == {"model": "tiny", "role": "judge"}
