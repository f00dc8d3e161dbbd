"""What stands in a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curation.attempts import GUESS, attempt, call, curated, model, rows, system, told, user
from ludus.curation import CurateConfig, RowConfig
from ludus.curation.training_rows import MalformedCallError, dpo_row, sft_row
from ludus.curation.writers import OutputKind
from ludus.data.content import Text
from ludus.data.messages import ImagePart, ImageUrl, Message
from ludus.errors import ConfigError

PLAYED = attempt(
    "played",
    0.5,
    task="t",
    tools=(GUESS,),
    messages=(
        system("Play."),
        user("Guess."),
        model("Now", call("guess", {"word": "öwl", "n": [1, {"a": None}]}, "x"), thought="Birds."),
        told("no", "x"),
        model("It is elk."),
    ),
)
CALLED = {
    "id": "x",
    "type": "function",
    "function": {"name": "guess", "arguments": {"word": "öwl", "n": [1, {"a": None}]}},
}


def roles(row: dict[str, Any], column: str = "messages") -> list[str]:
    return [message["role"] for message in row[column]]


def test_a_row_is_the_conversation_the_tools_and_where_it_came_from() -> None:
    assert sft_row(PLAYED) == {
        "messages": [
            {"role": "system", "content": "Play."},
            {"role": "user", "content": "Guess."},
            {
                "role": "assistant",
                "content": "Now",
                "reasoning_content": "Birds.",
                "tool_calls": [CALLED],
            },
            {"role": "tool", "content": "no", "tool_call_id": "x"},
            {"role": "assistant", "content": "It is elk."},
        ],
        "tools": [GUESS],
        "environment": "quiz",
        "group_id": "t",
        "episode_id": "played",
        "reward": 0.5,
    }


def test_the_seed_a_single_answer_is_written_as_its_family_writes_it() -> None:
    answer = call("answer", '{"answer": "41"}')
    episode = attempt("seed", messages=(user("17 + 24?"), model("", answer), told("right")))
    assert sft_row(episode, RowConfig(render="qwen3", tool_results=False))["messages"] == [
        {"role": "user", "content": "17 + 24?"},
        {
            "role": "assistant",
            "content": '<tool_call>\n{"name": "answer", "arguments": {"answer": "41"}}\n'
            "</tool_call>",
        },
    ]


def test_what_tools_answered_can_be_left_out() -> None:
    row = sft_row(PLAYED, RowConfig(tool_results=False))
    assert roles(row) == ["system", "user", "assistant", "assistant"]


def test_the_system_prompt_can_be_left_out() -> None:
    assert roles(sft_row(PLAYED, RowConfig(system=False)))[:2] == ["user", "assistant"]


def test_what_was_thought_can_be_left_out() -> None:
    assert "reasoning_content" not in sft_row(PLAYED, RowConfig(reasoning=False))["messages"][2]
    text = sft_row(PLAYED, RowConfig(reasoning=False, render="qwen3"))["messages"][2]["content"]
    assert "<think>" not in text and text.startswith("Now\n<tool_call>")


def test_the_last_turn_can_be_trained_on_alone() -> None:
    row = sft_row(PLAYED, RowConfig(last_turn=True))
    assert roles(row, "prompt") == ["system", "user", "assistant", "tool"]
    assert row["completion"] == [{"role": "assistant", "content": "It is elk."}]
    assert "messages" not in row and row["tools"] == [GUESS]


def test_the_last_turn_is_the_last_reply_even_if_the_tool_had_the_last_word() -> None:
    ended = attempt("ended", messages=PLAYED.messages[:4])
    row = sft_row(ended, RowConfig(last_turn=True))
    assert roles(row, "prompt") == ["system", "user"]
    assert row["completion"][0]["tool_calls"] == [CALLED]


def test_pictures_and_names_come_along_and_have_no_text_form() -> None:
    seen = Message(
        role="user",
        name="ann",
        content=(Text(text="What?"), ImagePart(image_url=ImageUrl(url="https://x.org/a.png"))),
    )
    episode = attempt("seen", messages=(seen, model("An owl.")))
    assert sft_row(episode)["messages"][0] == {
        "role": "user",
        "name": "ann",
        "content": [
            {"type": "text", "text": "What?"},
            {"type": "image_url", "image_url": {"url": "https://x.org/a.png"}},
        ],
    }


@pytest.mark.parametrize(
    "written", ["{", "[]", "null", '{"a": 1,}', '{"a": NaN}', '{"a": "\\ud800"}']
)
def test_arguments_that_are_no_object_make_no_row(written: str) -> None:
    odd = attempt("odd", messages=(user("q"), model("", call("f", written))))
    with pytest.raises(MalformedCallError):
        sft_row(odd)


def test_a_number_that_is_none_does_not_get_into_a_row(tmp_path: Path) -> None:
    huge = call("f", '{"a": 1e400}')
    curated(tmp_path, attempt("a", messages=(user("q"), model("", huge))))
    said = rows(tmp_path / "out" / "train.jsonl")[0]["messages"][1]["tool_calls"]
    assert said[0]["function"]["arguments"] == {"a": None}


def test_pairs_take_a_text_form_too() -> None:
    other = attempt("other", 0.0, messages=(*PLAYED.messages[:2], model("Hm.")))
    row = dpo_row(PLAYED, other, RowConfig(render="qwen3"))
    assert roles(row, "chosen") == ["assistant", "user", "assistant"]
    assert row["chosen"][1]["content"] == "<tool_response>\nno\n</tool_response>"
    assert row["rejected"] == [{"role": "assistant", "content": "Hm."}]


def test_a_text_form_that_nobody_writes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"There is no text form 'qwen33'.*Did you mean 'qwen3'"):
        RowConfig(render="qwen33")


def test_a_row_without_tools_says_so_and_offers_no_empty_list() -> None:
    """Templates of Llama 3.1 announce tools for a list without any."""
    assert sft_row(attempt("plain"))["tools"] is None
    assert dpo_row(attempt("a", task="t"), attempt("b", 0.0, task="t"))["tools"] is None


def test_words_in_parts_are_words() -> None:
    parts = (Text(text="Look"), Text(text="here"))
    episode = attempt("parts", messages=(Message(role="user", content=parts), model("Yes.")))
    assert sft_row(episode)["messages"][0]["content"] == "Look\nhere"


def test_rows_that_say_the_same_once_something_is_dropped_are_one(tmp_path: Path) -> None:
    some = [
        attempt(thought, task="t", messages=(user("?"), model("Elk.", thought=thought)))
        for thought in ("A deer.", "A moose.")
    ]
    assert curated(tmp_path / "all", *some).rows == {"train": 2}
    report = curated(tmp_path / "less", *some, form=RowConfig(reasoning=False))
    assert (report.rows, report.left_out) == ({"train": 1}, {"duplicate": 1})


def test_a_call_without_any_arguments_has_none() -> None:
    bare = attempt("bare", messages=(user("q"), model("", call("look", ""))))
    (called,) = sft_row(bare)["messages"][1]["tool_calls"]
    assert called["function"] == {"name": "look", "arguments": {}}


@pytest.mark.parametrize("to", ["episodes", "openenv", "nemo-gym", "nemo-gym-input"])
def test_what_is_taken_as_it_is_has_no_form(to: OutputKind) -> None:
    with pytest.raises(ConfigError, match=f"--to {to} takes episodes as they are"):
        CurateConfig(to=to, form=RowConfig(reasoning=False))
