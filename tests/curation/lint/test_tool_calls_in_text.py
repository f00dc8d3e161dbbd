"""Tool calls in text, in every form that `ludus curate --tool-call-format` writes."""

from __future__ import annotations

from typing import Any

import pytest
from policy.conversations import TOOLS, said

from curation.attempts import attempt, call, model, system, tool_result, user
from curation.lint.row_checks import check_contents
from ludus.curation.tool_call_text import CALL_FORMATS, ParsedCall, parse_tool_calls
from ludus.curation.training_rows import RowConfig, dpo_row, sft_row
from ludus.data.messages import Message

DRAW: dict[str, Any] = {
    "name": "draw",
    "parameters": {
        "type": "object",
        "properties": {
            "where": {"$ref": "#/$defs/Point"},
            "size": {"type": "number"},
            "filled": {"type": "boolean"},
            "colour": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "marks": {"type": "array", "items": {"type": "string"}},
            "label": {"type": "string"},
            "hint": True,
        },
        "required": ["size"],
        "additionalProperties": False,
        "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    },
}
DRAWN = {
    "where": {"x": 1},
    "size": 0.5,
    "filled": True,
    "colour": None,
    "marks": ["a", "<b>"],
    "label": "\n41\n",
    "hint": "öwl",
}
UNTYPED = ("qwen3.5", "glm4")


def row(family: str, *messages: Message) -> dict[str, Any]:
    tools = (*TOOLS, {"type": "function", "function": DRAW})
    return sft_row(attempt("e", tools=tools, messages=messages), RowConfig(tool_call_format=family))


def ending(family: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A row that ends with a call."""
    return row(family, user("Begin."), model("So:", call(name, arguments)))


@pytest.mark.parametrize("family", CALL_FORMATS)
def test_rendered_rows_have_no_findings(family: str) -> None:
    played = row(
        family,
        system("Play."),
        user("Begin."),
        model("", call("guess", {"word": "crane"}), reasoning="Vowels first."),
        tool_result("no"),
        model("Two.", call("add", {"a": 1, "b": 2}, "x"), call("draw", DRAWN, "y")),
        tool_result("3", "x"),
        tool_result("done", "y"),
        model("", call("add", {})),
        tool_result("0"),
        model("Found it."),
    )
    assert check_contents(played) == {}


@pytest.mark.parametrize("family", CALL_FORMATS)
def test_both_sides_of_a_rendered_pair_are_checked(family: str) -> None:
    good, bad = (
        attempt(name, task="t", tools=TOOLS, messages=[user("Begin."), model("", call(name, {}))])
        for name in ("add", "fly")
    )
    assert check_contents(dpo_row(good, bad, RowConfig(tool_call_format=family))) == {
        "unknown-tool": "note"
    }
    assert check_contents(dpo_row(bad, good, RowConfig(tool_call_format=family))) == {
        "unknown-tool": "error"
    }


@pytest.mark.parametrize("family", CALL_FORMATS)
@pytest.mark.parametrize("arguments", [{}, {"word": "crane"}])
def test_unknown_tool(family: str, arguments: dict[str, Any]) -> None:
    assert check_contents(ending(family, "fly", arguments)) == {"unknown-tool": "error"}


@pytest.mark.parametrize("family", CALL_FORMATS)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("guess", {}),
        ("add", {"a": "one", "b": 2}),
        ("add", {"a": 0.5}),
        ("draw", {"size": 1, "where": {"x": "left"}}),
        ("draw", {"size": 1, "filled": "maybe"}),
        ("draw", {"size": 1, "pen": "red"}),
    ],
)
def test_arguments_that_violate_the_schema(
    family: str, name: str, arguments: dict[str, Any]
) -> None:
    assert check_contents(ending(family, name, arguments)) == {"arguments-unfit": "error"}


@pytest.mark.parametrize("family", CALL_FORMATS)
def test_quoted_numbers_are_fine_where_all_values_are_text(family: str) -> None:
    noted = {} if family in UNTYPED else {"arguments-unfit": "note"}
    assert check_contents(ending(family, "add", {"a": "1", "b": 2})) == noted


@pytest.mark.parametrize("family", CALL_FORMATS)
def test_calls_are_parsed_in_order(family: str) -> None:
    calls = [call("guess", {"word": word}) for word in ("two\nlines", "")]
    (_, reply) = row(family, user("Go."), model("Both.", *calls, reasoning="{}"))["messages"]
    untyped = family in UNTYPED
    assert parse_tool_calls(reply) == [
        ParsedCall("guess", {"word": "two\nlines"}, untyped=untyped),
        ParsedCall("guess", {"word": ""}, untyped=untyped),
    ]


@pytest.mark.parametrize(
    "body",
    [
        "<function=guess>\n<parameter=word>\ncrane\n</function>",
        "<function=guess>\ncrane\n</function>",
        "<parameter=word>\ncrane\n</parameter>",
        "guess\n<arg_key>word</arg_key>\n",
        "guess crane",
        '{"arguments": {}}',
        "7",
        "",
    ],
)
def test_unparsable_tool_call_element(body: str) -> None:
    reply = said("assistant", f"<tool_call>{body}</tool_call>")
    findings = check_contents({"messages": [said("user", "Begin."), reply], "tools": TOOLS})
    assert findings == {"arguments-not-object": "error"}


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Anna", "age": 7}',
        '{"name": "Anna", "parameters": null}',
        '{"name": 7, "parameters": {}}',
        'Such as this: {"name": "fly", "parameters": {}}',
        '{"name": "fly", "parameters": {}}\nis how it would look.',
        "{}",
    ],
)
def test_an_answer_in_json_is_not_a_call(text: str) -> None:
    assert parse_tool_calls(said("assistant", text)) == []


def test_a_bare_call_may_span_lines() -> None:
    text = '{\n  "type": "function",\n  "name": "fly",\n  "parameters": {"to": "Rome"}\n}'
    assert parse_tool_calls(said("assistant", text)) == [ParsedCall("fly", {"to": "Rome"})]
    assert parse_tool_calls(said("user", text)) == []
