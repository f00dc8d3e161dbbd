"""The checks that need no student: a failing and a passing row for each."""

from __future__ import annotations

from typing import Any

import pytest
from policy.conversations import ENDED, PLAYED, TALK, TOOLS, answer, call, calling, said

from curation.lint.row_checks import LOCATION, check_contents
from ludus.curation.lint.lint_rows import MalformedRowError, parse_row
from ludus.errors import RunError

ASK, REPLY = said("user", "Begin."), said("assistant", "Gladly.")
GUESS = calling(call("guess", {"word": "crane"}))


def talk(*messages: dict[str, Any], tools: Any = TOOLS) -> dict[str, Any]:
    return {"messages": list(messages), "tools": tools}


def pair(chosen: list[Any], rejected: list[Any]) -> dict[str, Any]:
    return {"prompt": [ASK], "chosen": chosen, "rejected": rejected, "tools": TOOLS}


@pytest.mark.parametrize("row", [TALK, PLAYED, ENDED, pair([REPLY], [GUESS])])
def test_good_rows_have_no_findings(row: dict[str, Any]) -> None:
    assert check_contents(row) == {}


@pytest.mark.parametrize("row", [talk(), talk(ASK), pair([], [REPLY]), pair([REPLY], [ASK])])
def test_rows_without_an_assistant_turn(row: dict[str, Any]) -> None:
    assert check_contents(row)["no-assistant"] == "error"


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
    assert check_contents(row)["roles"] == "warning"


def test_calls_of_unknown_tools() -> None:
    fly = calling(call("fly", {}))
    assert check_contents(talk(ASK, fly)) == {"unknown-tool": "error"}
    assert check_contents(pair([REPLY], [fly])) == {"unknown-tool": "note"}, (
        "it was rejected, after all"
    )


def test_calls_without_tools() -> None:
    assert check_contents(talk(ASK, GUESS, tools=None)) == {"no-tools": "warning"}
    assert check_contents(talk(ASK, GUESS, tools=[])) == {"no-tools": "warning"}


@pytest.mark.parametrize("arguments", ["{", "[1]", '"crane"', [1], 7])
def test_arguments_that_are_not_an_object(arguments: Any) -> None:
    row = talk(ASK, calling(call("guess", arguments)))
    assert check_contents(row) == {"arguments-not-object": "error"}


@pytest.mark.parametrize("arguments", ['{"word": "crane"}', {"word": "crane"}])
def test_arguments_may_be_an_object_or_its_json(arguments: Any) -> None:
    assert check_contents(talk(ASK, calling(call("guess", arguments)))) == {}


@pytest.mark.parametrize("arguments", [{}, {"word": ["crane"]}])
def test_arguments_that_violate_the_schema(arguments: Any) -> None:
    row = talk(ASK, calling(call("guess", arguments)))
    assert check_contents(row) == {"arguments-unfit": "error"}


def test_arguments_that_can_be_coerced_are_a_note() -> None:
    row = talk(ASK, calling(call("add", {"a": "1", "b": 2})))
    assert check_contents(row) == {"arguments-unfit": "note"}


def test_invalid_tool_schema() -> None:
    broken = [{"type": "function", "function": {"name": "guess", "parameters": {"type": "word"}}}]
    assert check_contents(talk(ASK, GUESS, tools=broken)) == {"tool-schema": "warning"}


def test_remote_schema_references_are_not_fetched() -> None:
    elsewhere = {"name": "guess", "parameters": {"$ref": "http://127.0.0.1:9/schema"}}
    assert check_contents(talk(ASK, GUESS, tools=[elsewhere])) == {"arguments-unfit": "error"}


def test_calls_without_a_result() -> None:
    assert check_contents(talk(ASK, GUESS, said("user", "And?"), REPLY)) == {
        "unanswered-call": "warning"
    }
    two = calling(call("guess", {"word": "a"}, "1"), call("guess", {"word": "b"}, "2"))
    assert check_contents(talk(ASK, two, answer("no", "2"), REPLY)) == {
        "unanswered-call": "warning"
    }
    assert check_contents(talk(ASK, two, answer("no", "2"), answer("no", "1"), REPLY)) == {}
    assert check_contents(talk(ASK, two)) == {}, "a row may end with what it trains"


def test_results_without_a_call() -> None:
    assert check_contents(talk(ASK, REPLY, answer("no"), REPLY)) == {
        "answer-without-call": "warning"
    }
    other = talk(ASK, GUESS, answer("no", "other"), REPLY)
    assert check_contents(other) == {"answer-without-call": "warning", "unanswered-call": "warning"}


def test_results_without_ids_match_calls_in_order() -> None:
    bare = {"function": {"name": "guess", "arguments": {"word": "crane"}}}
    row = talk(ASK, calling(bare, bare), said("tool", "no"), said("tool", "no"), REPLY)
    assert check_contents(row) == {}


@pytest.mark.parametrize(
    ("prompt", "reply"),
    [
        ("The word is Crane.", GUESS),
        ("Do not say 4711!", calling(call("add", {"a": 4711, "b": 1}))),
        ("Is it Paris, or Rome?", said("assistant", "Paris.")),
    ],
)
def test_answer_in_the_prompt(prompt: str, reply: dict[str, Any]) -> None:
    assert check_contents(talk(said("user", prompt), reply)) == {"answer-in-prompt": "warning"}


@pytest.mark.parametrize(
    ("prompt", "reply"),
    [
        ("The cranes are here.", GUESS),
        ("Add 17 and 25.", calling(call("add", {"a": 17, "b": 25}))),
        ("Why?", said("assistant", "Why? " * 20)),
    ],
)
def test_parts_of_words_short_answers_and_long_texts_are_not_leaks(
    prompt: str, reply: dict[str, Any]
) -> None:
    assert check_contents(talk(said("user", prompt), reply)) == {}


def test_an_answer_in_a_tool_result_is_not_a_leak() -> None:
    found = calling(call("guess", {"word": "found"}, "2"))
    assert check_contents(talk(ASK, GUESS, answer("try found"), found)) == {}


def test_pairs_with_equal_sides() -> None:
    assert check_contents(pair([REPLY], [REPLY])) == {"equal-sides": "error"}


def test_environment_turns_inside_a_pair() -> None:
    row = pair([GUESS, answer("no"), REPLY], [REPLY])
    assert check_contents(row) == {"environment-tokens": "note"}


def test_calls_in_text_are_checked() -> None:
    def text(call: str) -> dict[str, Any]:
        return talk(ASK, said("assistant", f"So:\n<tool_call>\n{call}\n</tool_call>"))

    assert check_contents(text('{"name": "guess", "arguments": {"word": "crane"}}')) == {}
    assert check_contents(text('{"name": "fly", "arguments": {}}')) == {"unknown-tool": "error"}
    assert check_contents(text('{"name": "guess", "arguments": {}}')) == {
        "arguments-unfit": "error"
    }
    assert check_contents(text('{"name": ')) == {"arguments-not-object": "error"}


def test_results_of_calls_in_text_match() -> None:
    guess = said(
        "assistant", '<tool_call>{"name": "guess", "arguments": {"word": "a"}}</tool_call>'
    )
    assert check_contents(talk(ASK, guess, said("tool", "no"), REPLY)) == {}


@pytest.mark.parametrize(
    ("columns", "column"),
    [
        ({"messages": "hi"}, "`messages`"),
        ({"messages": ["hi"]}, r"`messages\[0\]`"),
        ({"messages": [{"content": "hi"}]}, r"`messages\[0\]`"),
        ({"messages": [said("assistant", "", tool_calls=[{}])]}, "tool_calls"),
        ({"messages": [ASK], "tools": "["}, "`tools`"),
        ({"messages": [ASK], "tools": [{}]}, "`tools`"),
        ({"prompt": [], "chosen": [], "rejected": None}, "`rejected`"),
    ],
)
def test_a_malformed_row_names_the_column(columns: dict[str, Any], column: str) -> None:
    with pytest.raises(MalformedRowError, match=column):
        parse_row(columns, LOCATION)


def test_a_row_without_training_columns_raises() -> None:
    with pytest.raises(RunError, match=r"train.jsonl:1"):
        parse_row({"text": "hi"}, LOCATION)


def test_tools_may_be_a_json_string() -> None:
    assert parse_row({"messages": [ASK], "tools": "[]"}, LOCATION).tools == []
