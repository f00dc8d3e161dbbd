"""Episodes as rollouts and inputs of NeMo Gym."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings

from curation.attempts import attempt, curate_episodes, many, read_rows
from curation.formats.conversations import episodes
from curation.formats.gym_lines import (
    TOOL,
    call_item,
    import_rollout,
    message_item,
    output_item,
    reasoning_item,
    rollout,
    system,
    user,
)
from ludus.curation.formats.base import build_episode
from ludus.curation.formats.nemo_gym import RolloutNumbers, build_gym_input, build_gym_rollout
from ludus.data.episode import Episode
from ludus.data.messages import Call, Function, Message
from ludus.data.tool_schema import JsonObject


def call(identity: str) -> Call:
    return Call(id=identity, function=Function(name="look_up", arguments="{}"))


def again(one: Episode) -> Episode:
    """Through a file of Gym's, and back."""
    with TemporaryDirectory() as folder:
        return import_rollout(Path(folder), build_gym_rollout(one))


@settings(deadline=None)
@given(episodes())
def test_episodes_round_trip(one: Episode) -> None:
    assert again(one) == one


@settings(deadline=None)
@given(episodes())
def test_fields_that_gym_has_do_not_need_the_extra_key(one: Episode) -> None:
    line = build_gym_rollout(one)
    del line["ludus"]
    with TemporaryDirectory() as folder:
        episode = import_rollout(Path(folder), line)
    assert (episode.messages, episode.tools) == (one.messages, one.tools)
    assert (episode.reward, episode.rewards) == (one.reward, one.rewards)


@pytest.mark.parametrize(
    "replies",
    [
        [Message(role="assistant", content="a"), Message(role="assistant", content="b")],
        [
            Message(role="assistant", content="a"),
            Message(role="assistant", tool_calls=(call("1"), call("2"))),
        ],
        [
            Message(role="assistant", tool_calls=(call("1"),)),
            Message(role="assistant", tool_calls=(call("2"),)),
        ],
        [
            Message(role="assistant", reasoning_content="a"),
            Message(role="assistant", reasoning_content="b", tool_calls=(call("1"),)),
        ],
        [Message(role="assistant"), Message(role="user", content="a"), Message(role="assistant")],
    ],
)
def test_consecutive_replies_stay_separate(replies: list[Message]) -> None:
    prompt = Message(role="user", content="Owl?")
    one = build_episode(environment="e", messages=(prompt, *replies), reward=1.0)
    assert again(one).messages == (prompt, *replies)


def _gym() -> list[JsonObject]:
    parallel = [
        reasoning_item("hm"),
        message_item("Both."),
        call_item("a"),
        call_item("b"),
        output_item("a"),
    ]
    parts = [[user("A door."), call_item("a"), output_item("a")]]
    parts.append(
        [*parts[0], call_item("b"), output_item("b", [{"type": "input_text", "text": "x"}])]
    )
    asked = {"tools": [TOOL], "temperature": 0.6, "metadata": {"extra_body": "{}"}}
    failed = {"_ng_failure_class": "judge_failed", "_ng_failure_judge_error": "gone"}
    return [
        rollout([system("s"), user("u")], [*parallel, user("more"), message_item("")], asked=asked),
        rollout([], parts, replied={"group_id": "3"}, reward_components={"a": 0.5}),
        rollout("u", [message_item("x")], reward=0.0, mask_sample=True, expected_answer="y"),
        rollout("u", [message_item("x")], reward=0.0, **failed),
        rollout(
            "u", [message_item("x")], replied={"incomplete_details": {"reason": "content_filter"}}
        ),
    ]


@pytest.mark.parametrize("line", _gym())
def test_rollouts_of_gym_round_trip(tmp_path: Path, line: JsonObject) -> None:
    first = import_rollout(tmp_path, line)
    assert import_rollout(tmp_path, build_gym_rollout(first)) == first


def test_a_rollout_has_the_format_of_gym() -> None:
    messages = (
        Message(role="user", content="Owl?"),
        Message(role="assistant", reasoning_content="hm", tool_calls=(call("c1"),)),
        Message(role="tool", content="a bird", tool_call_id="c1"),
    )
    nested = {"name": "look_up", "description": "", "parameters": {"type": "object"}}
    tool = {"type": "function", "function": nested}
    one = build_episode(
        environment="e", messages=messages, tools=(tool,), reward=0.5, task={"w": 1}
    )
    line = build_gym_rollout(one)
    asked = line["responses_create_params"]
    assert asked["input"] == [{"role": "user", "content": "Owl?", "type": "message"}]
    assert asked["tools"] == [{**nested, "type": "function", "strict": None}]
    assert [item["type"] for item in line["response"]["output"]] == [
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert (line["reward"], line["w"], line["response"]["status"]) == (0.5, 1, "completed")
    assert "mask_sample" not in line


def test_rollouts_are_numbered_by_task_and_attempt(tmp_path: Path) -> None:
    own = import_rollout(tmp_path, rollout("u", [message_item("x")], _ng_task_index=1))
    tasks = [
        build_episode(environment="e", messages=(), reward=1.0, task={"n": n}) for n in (0, 1, 2)
    ]
    other = own.model_copy(update={"group_id": "of another data set"})
    numbers = RolloutNumbers()
    lines = [
        build_gym_rollout(each, numbers)
        for each in (tasks[0], own, tasks[1], tasks[0], own, other, tasks[2])
    ]
    assert [(line["_ng_task_index"], line["_ng_rollout_index"]) for line in lines] == [
        *((0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (3, 0), (4, 0)),
    ]
    assert [line["agent_ref"]["name"] for line in lines] == [
        *("e", "words_agent", "e", "e", "words_agent", "words_agent", "e"),
    ]
    curate_episodes(tmp_path, *many(3), to="nemo-gym")
    written = read_rows(tmp_path / "out" / "train.jsonl")
    numbered = [(line["_ng_task_index"], line["_ng_rollout_index"]) for line in written]
    assert sorted(numbered) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    # Numbers that Ludus has given do not become arguments of the task.
    assert import_rollout(tmp_path, lines[0]).task == {"n": 0}
    assert import_rollout(tmp_path, lines[5]).task == own.task


def test_inputs_have_the_numbers_of_their_rollouts(tmp_path: Path) -> None:
    attempts = [
        attempt(f"{task}{number}", reward, task=task)
        for task, number, reward in (("a", 0, 0.0), ("b", 0, 1.0), ("a", 1, 1.0), ("c", 0, 1.0))
    ]
    curate_episodes(tmp_path / "rollouts", *attempts, to="nemo-gym")
    curate_episodes(tmp_path / "inputs", *attempts, to="nemo-gym-input")
    rollouts, inputs = (
        [
            (
                row["responses_create_params"]["input"][0]["content"],
                row["_ng_task_index"],
                row["_ng_rollout_index"],
            )
            for row in read_rows(tmp_path / to / "out" / "train.jsonl")
        ]
        for to in ("rollouts", "inputs")
    )
    assert inputs == [("What is a?", 0, 0), ("What is b?", 1, 0), ("What is c?", 2, 0)]
    assert set(rollouts) == {*inputs, ("What is a?", 0, 1)}


def test_an_unscored_attempt_is_masked() -> None:
    line = build_gym_rollout(build_episode(environment="e", messages=(), reward=None))
    assert (line["reward"], line["mask_sample"]) == (0.0, True)


def test_an_input_has_only_prompt_and_task(tmp_path: Path) -> None:
    extra = {"extra_body": '{"seed": 3}', "audio_url": "data:audio/wav;base64,AA=="}
    asked = {"tools": [TOOL], "temperature": 0.6, "metadata": extra}
    line = rollout([system("s"), user("u")], [message_item("x")], asked=asked, expected_answer="y")
    input_line = build_gym_input(import_rollout(tmp_path, line))
    assert input_line == {
        "responses_create_params": {
            "input": [system("s"), user("u")],
            "tools": [TOOL],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "metadata": {"audio_url": "data:audio/wav;base64,AA=="},
        },
        "expected_answer": "y",
        "_ng_task_index": 0,
        "_ng_rollout_index": 0,
        "agent_ref": {"type": "responses_api_agents", "name": "words_agent"},
    }
    assert json.loads(json.dumps(input_line)) == input_line
