"""The checks that need no student: for each a row that fails it, and one that passes."""

from __future__ import annotations

from typing import Any

import pytest
from policy.conversations import ENDED, PLAYED, TALK, TOOLS, answer, call, calling, said

from curation.lint.linting import HERE, plain
from ludus.curation.lint.rows import MalformedRowError, parse_row
from ludus.errors import RunError

ASK, REPLY = said("user", "Begin."), said("assistant", "Gladly.")
GUESS = calling(call("guess", {"word": "crane"}))


def talk(*messages: dict[str, Any], tools: Any = TOOLS) -> dict[str, Any]:
    return {"messages": list(messages), "tools": tools}


def pair(chosen: list[Any], rejected: list[Any]) -> dict[str, Any]:
    return {"prompt": [ASK], "chosen": chosen, "rejected": rejected, "tools": TOOLS}


@pytest.mark.parametrize("row", [TALK, PLAYED, ENDED, pair([REPLY], [GUESS])])
def test_a_good_row_is_not_faulted(row: dict[str, Any]) -> None:
    assert plain(row) == {}


@pytest.mark.parametrize("row", [talk(), talk(ASK), pair([], [REPLY]), pair([REPLY], [ASK])])
def test_a_row_with_nothing_to_learn(row: dict[str, Any]) -> None:
    assert plain(row)["no-assistant"] == "error"


@pytest.mark.parametrize(
    "row",
    [
        talk(REPLY),
        talk(ASK, REPLY, REPLY),
        talk(ASK, said("system", "Late."), REPLY),
        talk(ASK, answer("no"), REPLY),
        talk(ASK, said("critic", "Bad."), REPLY),
    ],
)
def test_roles_out_of_order(row: dict[str, Any]) -> None:
    assert plain(row)["roles"] == "warning"


def test_a_call_to_a_tool_that_is_not_offered() -> None:
    fly = calling(call("fly", {}))
    assert plain(talk(ASK, fly)) == {"unknown-tool": "error"}
    assert plain(pair([REPLY], [fly])) == {"unknown-tool": "note"}, "it was rejected, after all"


def test_calls_where_no_tools_are_offered() -> None:
    assert plain(talk(ASK, GUESS, tools=None)) == {"no-tools": "warning"}
    assert plain(talk(ASK, GUESS, tools=[])) == {"no-tools": "warning"}


@pytest.mark.parametrize("arguments", ["{", "[1]", '"crane"', [1], 7])
def test_arguments_that_are_no_object(arguments: Any) -> None:
    row = talk(ASK, calling(call("guess", arguments)))
    assert plain(row) == {"arguments-not-object": "error"}


@pytest.mark.parametrize("arguments", ['{"word": "crane"}', {"word": "crane"}])
def test_arguments_may_be_an_object_or_its_json(arguments: Any) -> None:
    assert plain(talk(ASK, calling(call("guess", arguments)))) == {}


@pytest.mark.parametrize("arguments", [{}, {"word": ["crane"]}])
def test_arguments_that_do_not_fit_the_tool(arguments: Any) -> None:
    row = talk(ASK, calling(call("guess", arguments)))
    assert plain(row) == {"arguments-unfit": "error"}


def test_arguments_that_a_tool_would_understand_are_only_noted() -> None:
    row = talk(ASK, calling(call("add", {"a": "1", "b": 2})))
    assert plain(row) == {"arguments-unfit": "note"}


def test_parameters_that_are_no_schema() -> None:
    broken = [{"type": "function", "function": {"name": "guess", "parameters": {"type": "word"}}}]
    assert plain(talk(ASK, GUESS, tools=broken)) == {"tool-schema": "warning"}


def test_a_schema_elsewhere_is_not_fetched() -> None:
    elsewhere = {"name": "guess", "parameters": {"$ref": "http://127.0.0.1:9/schema"}}
    assert plain(talk(ASK, GUESS, tools=[elsewhere])) == {"arguments-unfit": "error"}


def test_a_call_without_an_answer() -> None:
    assert plain(talk(ASK, GUESS, said("user", "And?"), REPLY)) == {"unanswered-call": "warning"}
    two = calling(call("guess", {"word": "a"}, "1"), call("guess", {"word": "b"}, "2"))
    assert plain(talk(ASK, two, answer("no", "2"), REPLY)) == {"unanswered-call": "warning"}
    assert plain(talk(ASK, two, answer("no", "2"), answer("no", "1"), REPLY)) == {}
    assert plain(talk(ASK, two)) == {}, "a row may end with what it trains"


def test_an_answer_without_a_call() -> None:
    assert plain(talk(ASK, REPLY, answer("no"), REPLY)) == {"answer-without-call": "warning"}
    other = talk(ASK, GUESS, answer("no", "other"), REPLY)
    assert plain(other) == {"answer-without-call": "warning", "unanswered-call": "warning"}


def test_answers_without_ids_go_by_order() -> None:
    bare = {"function": {"name": "guess", "arguments": {"word": "crane"}}}
    row = talk(ASK, calling(bare, bare), said("tool", "no"), said("tool", "no"), REPLY)
    assert plain(row) == {}


@pytest.mark.parametrize(
    ("prompt", "reply"),
    [
        ("The word is Crane.", GUESS),
        ("Do not say 4711!", calling(call("add", {"a": 4711, "b": 1}))),
        ("Is it Paris, or Rome?", said("assistant", "Paris.")),
    ],
)
def test_an_answer_that_stands_in_the_prompt(prompt: str, reply: dict[str, Any]) -> None:
    assert plain(talk(said("user", prompt), reply)) == {"answer-in-prompt": "warning"}


@pytest.mark.parametrize(
    ("prompt", "reply"),
    [
        ("The cranes are here.", GUESS),
        ("Add 17 and 25.", calling(call("add", {"a": 17, "b": 25}))),
        ("Why?", said("assistant", "Why? " * 20)),
    ],
)
def test_no_answer_in_parts_of_words_small_numbers_and_long_texts(
    prompt: str, reply: dict[str, Any]
) -> None:
    assert plain(talk(said("user", prompt), reply)) == {}


def test_what_a_tool_said_gives_nothing_away() -> None:
    found = calling(call("guess", {"word": "found"}, "2"))
    assert plain(talk(ASK, GUESS, answer("try found"), found)) == {}


def test_sides_that_are_equal() -> None:
    assert plain(pair([REPLY], [REPLY])) == {"equal-sides": "error"}


def test_turns_of_the_environment_inside_a_pair() -> None:
    row = pair([GUESS, answer("no"), REPLY], [REPLY])
    assert plain(row) == {"environment-tokens": "note"}


def test_calls_as_text_are_looked_at_too() -> None:
    def text(call: str) -> dict[str, Any]:
        return talk(ASK, said("assistant", f"So:\n<tool_call>\n{call}\n</tool_call>"))

    assert plain(text('{"name": "guess", "arguments": {"word": "crane"}}')) == {}
    assert plain(text('{"name": "fly", "arguments": {}}')) == {"unknown-tool": "error"}
    assert plain(text('{"name": "guess", "arguments": {}}')) == {"arguments-unfit": "error"}
    assert plain(text('{"name": ')) == {"arguments-not-object": "error"}


def test_answers_to_calls_in_text_are_no_strangers() -> None:
    guess = said(
        "assistant", '<tool_call>{"name": "guess", "arguments": {"word": "a"}}</tool_call>'
    )
    assert plain(talk(ASK, guess, said("tool", "no"), REPLY)) == {}


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"messages": "hi"}, "`messages` is not a list"),
        ({"messages": ["hi"]}, r"`messages\[0\]` is no message"),
        ({"messages": [{"content": "hi"}]}, r"`messages\[0\]` is no message"),
        ({"messages": [said("assistant", "", tool_calls=[{}])]}, "not a list of calls"),
        ({"messages": [ASK], "tools": "["}, "`tools` is a string that is not JSON"),
        ({"messages": [ASK], "tools": [{}]}, "`tools` is not a list of tools"),
        ({"prompt": [], "chosen": [], "rejected": None}, "`rejected` is not a list"),
    ],
)
def test_what_no_trainer_can_read_is_named(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(MalformedRowError, match=why):
        parse_row(columns, HERE)


def test_a_row_without_the_columns_is_an_error() -> None:
    with pytest.raises(RunError, match=r"train.jsonl:1 has neither `messages` nor `prompt`"):
        parse_row({"text": "hi"}, HERE)


def test_tools_may_be_written_as_json() -> None:
    assert parse_row({"messages": [ASK], "tools": "[]"}, HERE).tools == []
