"""Import of JSONL with messages and a reward, in the variants of other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from curation.formats.message_lines import ASKED, SAID, one, read
from ludus.curation.formats.base import UnreadableRecord
from ludus.curation.formats.messages import read_messages
from ludus.curation.formats.run_import import FORMATS, find_import_files
from ludus.data.episode import Episode, StopReason
from ludus.data.messages import ImagePart, Text
from ludus.errors import RunError

FILM = {"role": "user", "content": [{"type": "video"}]}
SCHEMA = {"type": "object"}


def said(folder: Path, *turns: Any) -> Episode:
    return one(folder, messages=list(turns))


def test_a_row_with_a_reward_is_a_scored_episode(tmp_path: Path) -> None:
    episode = one(tmp_path, messages=[ASKED, SAID], reward=0.5, id="row-1")
    assert (episode.episode_id, episode.reward, episode.turns) == ("row-1", 0.5, 1)
    assert [message.text for message in episode.messages] == ["What is 1 + 1?", "2"]
    assert episode.stop_reason is StopReason.DONE


@pytest.mark.parametrize(
    ("fields", "reward"),
    [
        ({"score": 1}, 1.0),
        ({"reward": None, "score": 1}, 1.0),
        ({"reward": 0, "score": 1}, 0.0),
        ({"reward": True}, 1.0),
        ({"reward": None}, None),
        ({"reward": float("nan")}, None),
        ({}, None),
    ],
)
def test_unscored_rows_have_no_reward(
    tmp_path: Path, fields: dict[str, Any], reward: float | None
) -> None:
    assert one(tmp_path, messages=[ASKED, SAID], **fields).reward == reward


def test_rows_with_the_same_prompt_are_attempts_at_the_same_task(tmp_path: Path) -> None:
    other = {"role": "assistant", "content": "3"}
    lines = [{"messages": [ASKED, SAID]}, {"messages": [ASKED, other]}, {"messages": [SAID]}]
    groups = [item.group_id for item in read(tmp_path, *lines) if isinstance(item, Episode)]
    assert groups[0] == groups[1] != groups[2]


def test_prompt_and_completion_are_a_conversation(tmp_path: Path) -> None:
    lists = one(tmp_path, prompt=[ASKED], completion=[SAID])
    words = one(tmp_path, prompt="What is 1 + 1?", completion="2")
    assert lists.messages == words.messages == said(tmp_path, ASKED, SAID).messages


def test_sharegpt_roles(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "What is 1 + 1?"}, {"from": "gpt", "value": "2"}]
    assert one(tmp_path, conversations=turns).messages == said(tmp_path, ASKED, SAID).messages


def test_developer_role_and_names_of_reasoning(tmp_path: Path) -> None:
    developer = {"role": "developer", "content": "Be brief."}
    for name in ("reasoning_content", "reasoning", "thinking"):
        first, last = said(tmp_path, developer, {**SAID, name: "Easy."}).messages
        assert (first.role, last.reasoning_content) == ("system", "Easy.")


@pytest.mark.parametrize(
    "call",
    [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}},
        {"id": "a", "function": {"name": "add", "arguments": {"x": 1}}},
        {"id": "a", "name": "add", "arguments": {"x": 1}},
        json.dumps({"id": "a", "function": {"name": "add", "arguments": '{"x": 1}'}}),
    ],
)
def test_variants_of_a_call(tmp_path: Path, call: Any) -> None:
    (message,) = said(
        tmp_path, {"role": "assistant", "content": None, "tool_calls": [call]}
    ).messages
    assert message.tool_calls is not None
    (made,) = message.tool_calls
    assert (made.id, made.function.name, made.function.arguments) == ("a", "add", '{"x": 1}')


def test_results_without_ids_belong_to_the_preceding_calls(tmp_path: Path) -> None:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("one", "two")]
    answers = [{"role": "tool", "content": "1"}, {"role": "function", "content": "2"}]
    asked, *answered = said(tmp_path, {"role": "assistant", "tool_calls": calls}, *answers).messages
    assert asked.tool_calls is not None
    assert [answer.tool_call_id for answer in answered] == [call.id for call in asked.tool_calls]


@pytest.mark.parametrize(
    "arguments",
    ['{"x": ', "[1]", '{"x": NaN}', '{"x": "\\ud800"}', '{"x": ' + "[" * 5000 + "]" * 5000 + "}"],
    ids=["cut off", "a list", "not a number", "half a character", "too deep"],
)
def test_malformed_arguments_are_kept_and_counted(tmp_path: Path, arguments: str) -> None:
    call = {"id": "a", "function": {"name": "add", "arguments": arguments}}
    episode = said(tmp_path, {"role": "assistant", "tool_calls": [call]})
    assert (episode.tool_calls, episode.malformed_calls) == (1, 1)
    (message,) = episode.messages
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.arguments == arguments


def test_images_keep_their_position(tmp_path: Path) -> None:
    url = "data:image/png;base64,AAAA"
    parts = [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "image_url": url},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    (message,) = said(tmp_path, {"role": "user", "content": parts}).messages
    assert [type(part) for part in message.content] == [Text, ImagePart, ImagePart]


@pytest.mark.parametrize(
    "tool",
    [
        {
            "type": "function",
            "name": "add",
            "description": "Add.",
            "parameters": SCHEMA,
        },
        {"name": "add", "description": "Add.", "input_schema": SCHEMA},
        {"name": "add", "description": "Add.", "inputSchema": SCHEMA},
        {
            "type": "function",
            "function": {"name": "add", "description": "Add.", "parameters": SCHEMA},
        },
    ],
)
def test_flat_tools_are_nested(tmp_path: Path, tool: dict[str, Any]) -> None:
    schema = {"name": "add", "description": "Add.", "parameters": SCHEMA}
    for tools in ([tool], json.dumps([tool])):
        (made,) = one(tmp_path, messages=[ASKED, SAID], tools=tools).tools
        assert made == {"type": "function", "function": schema}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"reward": 1}, "it has neither messages "),
        ([1], "the line is not a JSON object"),
        ({"messages": "hello"}, "messages is not a list"),
        ({"messages": [5]}, "message 0 is not a JSON object"),
        ({"messages": [{"role": "wizard", "content": ""}]}, "role: Input should be"),
        ({"messages": [ASKED], "reward": "high"}, "reward is not a number"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
            "a part of type 'video'",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "a tool call "),
        ({"messages": [ASKED], "tools": [{"type": "hosted"}]}, "a tool of type 'hosted' "),
        ({"messages": [ASKED], "tools": [{"function": {}}]}, "a tool of type 'function' "),
        ({"messages": [ASKED], "tools": "[oops"}, "tools is a string"),
        (
            {"messages": [{"role": "assistant", "tool_calls": ["[" * 5000]}]},
            "a tool call is a string",
        ),
        ({"messages": [ASKED], "group_id": ["a"]}, "group_id is not a name"),
        ({"messages": [ASKED], "seed": "seven"}, "seed: "),
        ({"messages": [ASKED], "agent": [1]}, "agent is not a JSON object"),
    ],
)
def test_unreadable_lines_are_reported(tmp_path: Path, line: Any, reason: str) -> None:
    good, bad = read(tmp_path, {"messages": [ASKED, SAID]}, line)
    assert isinstance(good, Episode)
    assert isinstance(bad, UnreadableRecord)
    assert str(bad).startswith(f"{tmp_path / 'rows.jsonl'}:2: {reason}")


def test_a_line_that_is_not_json_does_not_affect_others(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = json.dumps({"messages": [ASKED, SAID]})
    file.write_text(f"{row}\n\n{{oops\n{row}\n")
    first, bad, last = read_messages(file)
    assert isinstance(first, Episode)
    assert isinstance(last, Episode)
    assert isinstance(bad, UnreadableRecord)
    assert (bad.line, bad.reason[:8]) == (3, "not JSON")


def test_all_jsonl_files_of_a_folder_are_read(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "notes.txt"):
        (tmp_path / name).touch()
    assert [file.name for file in find_import_files(FORMATS["messages"], tmp_path)] == [
        "a.jsonl",
        "b.jsonl",
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"\.jsonl"):
        find_import_files(FORMATS["messages"], tmp_path / "empty")


def test_results_of_verifiers_are_read() -> None:
    """`vf-eval` 0.1.14 wrote the file, playing questions of ours against a stand-in for an API."""
    file = Path(__file__).parent / "files" / "verifiers.jsonl"
    sky, again, *_, failed, green = read_messages(file)
    assert isinstance(sky, Episode) and isinstance(again, Episode) and isinstance(green, Episode)
    roles = ["system", "user", "assistant", "tool", "assistant"]
    assert [message.role for message in sky.messages] == roles
    assert [tool["function"]["name"] for tool in sky.tools] == ["look_up"]
    assert sky.group_id == again.group_id != green.group_id
    assert (sky.reward, again.reward, green.reward) == (1.0, 0.0, 1.0)
    assert isinstance(failed, Episode) and failed.error is not None
    assert (failed.reward, failed.error.kind) == (None, "ModelError")
