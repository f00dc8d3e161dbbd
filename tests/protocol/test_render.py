"""How observations of every known shape read to a model."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.data.content import Image, Text
from ludus.protocol.derive import tool_from_action
from ludus.protocol.render import render


@pytest.mark.parametrize(
    ("observation", "shown"),
    [
        ({"text": "Hello.", "content": [], "metadata": {"x": 1}}, "Hello."),
        (
            {
                "question": "17 + 4?",
                "score": None,
                "correct_answer": None,
                "dataset_metadata": {"answer": "21"},
            },
            "17 + 4?",
        ),
        (
            {"question": None, "score": 1.0, "correct_answer": "21", "dataset_metadata": None},
            "score: 1.0\ncorrect_answer: 21",
        ),
        ({"echoed_message": "hi", "message_length": 2}, "hi"),
        (
            {"info_state": [0, 1], "legal_actions": [0, 2], "game_phase": "playing", "info": {}},
            "info_state: [0, 1]\nlegal_actions: [0, 2]\ngame_phase: playing",
        ),
        ({"tool_name": "add", "result": 5, "error": None}, "5"),
        ({"tool_name": "add", "result": "five", "error": None}, "five"),
        (
            {"tool_name": "add", "result": None, "error": {"error_type": "x", "message": "No."}},
            "Error: No.",
        ),
        (
            {"tool_name": "t", "result": {"content": [{"type": "text", "text": "a"}], "data": 1}},
            "a",
        ),
        ({}, ""),
    ],
)
def test_an_observation_reads_as(observation: dict[str, Any], shown: str) -> None:
    assert render(observation) == shown


def test_a_screenshot_becomes_a_picture() -> None:
    assert render({"text": "A page.", "screenshot": "data:image/jpeg;base64,AAAA"}) == [
        Text(text="A page."),
        Image(data="AAAA", mime_type="image/jpeg"),
    ]
    blocks = {"content": [{"type": "image", "data": "AA", "mimeType": "image/webp"}]}
    assert render({"tool_name": "look", "result": blocks}) == [
        Image(data="AA", mime_type="image/webp")
    ]


def test_an_action_with_one_field_lends_its_tool_that_name() -> None:
    schema = {
        "title": "ReasoningGymAction",
        "description": "Answer it.",
        "properties": {"answer": {"type": "string", "title": "Answer"}, "metadata": {}},
        "required": ["answer"],
    }
    tool = tool_from_action(schema)
    assert (tool.name, tool.description) == ("answer", "Answer it.")
    assert tool.input_schema == {
        "type": "object",
        "properties": {"answer": {"type": "string"}},
        "required": ["answer"],
        "additionalProperties": False,
    }


def test_an_action_with_several_fields_names_its_tool_after_itself() -> None:
    fields: dict[str, Any] = {"action_id": {"type": "integer"}, "game_name": {"type": "string"}}
    assert tool_from_action({"title": "OpenSpielAction", "properties": fields}).name == "open_spiel"
