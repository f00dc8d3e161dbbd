"""The checks of tool calls: a failing and a passing row for each."""

from __future__ import annotations

from typing import Any

import pytest
from policy.conversations import answer, call, calling, said

from curation.lint.checking import ASK, GUESS, REPLY, check_contents, pair, talk


def test_calls_of_unknown_tools() -> None:
    fly = calling(call("fly", {}))
    assert check_contents(talk(ASK, fly)) == {"unknown-tool": "error"}
    assert check_contents(pair([REPLY], [fly])) == {}, "it was rejected, after all"


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
    assert check_contents(row) == {"arguments-invalid": "error"}


def test_arguments_that_can_be_coerced_are_fine() -> None:
    assert check_contents(talk(ASK, calling(call("add", {"a": "1", "b": 2})))) == {}


def test_invalid_tool_schema() -> None:
    broken = [{"type": "function", "function": {"name": "guess", "parameters": {"type": "word"}}}]
    assert check_contents(talk(ASK, GUESS, tools=broken)) == {"tool-schema": "warning"}


@pytest.mark.parametrize("parameters", [5, '{"$schema": "x"}', {"$schema": 5}, {"$schema": ["a"]}])
def test_parameters_that_are_no_schema(parameters: Any) -> None:
    broken = [{"type": "function", "function": {"name": "guess", "parameters": parameters}}]
    assert check_contents(talk(ASK, GUESS, tools=broken)) == {"tool-schema": "warning"}


def test_remote_schema_references_are_not_fetched() -> None:
    elsewhere = {"name": "guess", "parameters": {"$ref": "http://127.0.0.1:9/schema"}}
    assert check_contents(talk(ASK, GUESS, tools=[elsewhere])) == {"arguments-invalid": "error"}


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
