"""SFT and DPO rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curation.attempts import (
    GUESS,
    attempt,
    call,
    curate_episodes,
    model,
    read_rows,
    system,
    tool_result,
    user,
)
from ludus.curation import CurateConfig
from ludus.curation.config import OutputKind
from ludus.curation.row_builders import MalformedCallError, dpo_row, sft_rows
from ludus.data.episode import Episode
from ludus.data.messages import ImagePart, ImageUrl, Message, Text
from ludus.errors import ConfigError

PLAYED = attempt(
    "played",
    0.5,
    task="t",
    tools=(GUESS,),
    messages=(
        system("Play."),
        user("Guess."),
        model(
            "Now", call("guess", {"word": "öwl", "n": [1, {"a": None}]}, "x"), reasoning="Birds."
        ),
        tool_result("no", "x"),
        model("It is elk."),
    ),
)
CALLED = {
    "id": "x",
    "type": "function",
    "function": {"name": "guess", "arguments": {"word": "öwl", "n": [1, {"a": None}]}},
}


def sft_row(episode: Episode, **options: bool) -> dict[str, Any]:
    (row,) = sft_rows(episode, **options)
    return row


def test_an_sft_row() -> None:
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


def test_without_reasoning() -> None:
    assert "reasoning_content" not in sft_row(PLAYED, reasoning=False)["messages"][2]


def test_images_and_names_are_kept() -> None:
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
def test_arguments_that_are_not_an_object_raise(written: str) -> None:
    odd = attempt("odd", messages=(user("q"), model("", call("f", written))))
    with pytest.raises(MalformedCallError):
        sft_row(odd)


def test_infinite_numbers_become_null(tmp_path: Path) -> None:
    huge = call("f", '{"a": 1e400}')
    curate_episodes(tmp_path, attempt("a", messages=(user("q"), model("", huge))))
    calls = read_rows(tmp_path / "out" / "train.jsonl")[0]["messages"][1]["tool_calls"]
    assert calls[0]["function"]["arguments"] == {"a": None}


def test_a_row_without_tools_has_null() -> None:
    """Llama 3.1's templates announce tools even if the list is empty."""
    assert sft_row(attempt("plain"))["tools"] is None
    assert dpo_row(attempt("a", task="t"), attempt("b", 0.0, task="t"))["tools"] is None


def test_text_parts_become_a_string() -> None:
    parts = (Text(text="Look"), Text(text="here"))
    episode = attempt("parts", messages=(Message(role="user", content=parts), model("Yes.")))
    assert sft_row(episode)["messages"][0]["content"] == "Look\nhere"


def test_rows_that_become_equal_are_deduplicated(tmp_path: Path) -> None:
    some = [
        attempt(reasoning, task="t", messages=(user("?"), model("Elk.", reasoning=reasoning)))
        for reasoning in ("A deer.", "A moose.")
    ]
    assert curate_episodes(tmp_path / "all", *some).rows == {"train": 2}
    report = curate_episodes(tmp_path / "less", *some, reasoning=False)
    assert (report.rows, report.left_out) == ({"train": 1}, {"duplicate": 1})


def test_a_call_without_arguments() -> None:
    bare = attempt("bare", messages=(user("q"), model("", call("look", ""))))
    (called,) = sft_row(bare)["messages"][1]["tool_calls"]
    assert called["function"] == {"name": "look", "arguments": {}}


@pytest.mark.parametrize("to", ["episodes", "openenv", "nemo-gym", "nemo-gym-input"])
def test_row_options_require_training_rows(to: OutputKind) -> None:
    with pytest.raises(ConfigError, match=f"reasoning.*{to}"):
        CurateConfig(to=to, reasoning=False)
