"""How observations of every known shape read to a model."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.data.messages import Image, Text
from ludus.protocol.observation_text import build_view, render_observation
from ludus.protocol.types import tool_from_action


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
        (
            {"text": "Your move.", "lives": 0, "won": False, "moves": 0, "note": "", "hint": None},
            "Your move.\nlives: 0\nwon: false\nmoves: 0",
        ),
        ({"text": "A page.", "axtree_txt": "A page.\n"}, "A page."),
        (
            {"question": "17 + 4?", "correct_answer": "21", "ground_truth": "21", "hint": "Add."},
            "17 + 4?\nhint: Add.",
        ),
        ({"board": [[0, 1], [2.5, 0]], "turn": 3}, "board:\n0 1\n2.5 0\n\nturn: 3"),
        (
            {"items": [{"id": 1, "at": [0, 2]}, {"id": 2}]},
            'items:\n{"id": 1, "at": [0, 2]}\n{"id": 2}',
        ),
        ({"probabilities": [0.0, 1.0, 0.30000001192092896]}, "probabilities: [0, 1, 0.3]"),
        ({"text": "ACGT" * 5000}, "ACGT" * 5000),
        ({"tool_name": "t", "result": "ACGT" * 5000}, "ACGT" * 5000),
        ({"audio": "QUJD" * 5000}, "audio: [20000 characters of encoded data, not shown]"),
        ({"depth": [[0.5] * 64] * 64}, "depth: [64 x 64 numbers, not shown]"),
        (
            {"scan": {"range": [0.1] * 5000, "angle": 3}},
            'scan: {"range": "[5000 numbers, not shown]", "angle": 3}',
        ),
        ({"odd": [[1, 2], 3], "more": [1, "a"]}, 'odd: [[1, 2], 3]\nmore: [1, "a"]'),
        ({"content": "Words.", "step": 1}, "content: Words.\nstep: 1"),
        ({"tool_name": "t", "result": {"content": [{"type": "audio", "data": "AA"}, 3]}}, ""),
    ],
)
def test_an_observation_reads_as(observation: dict[str, Any], shown: str) -> None:
    assert render_observation(observation) == shown


def test_a_screenshot_becomes_a_picture() -> None:
    assert render_observation({"text": "A page.", "screenshot": "data:image/jpeg;base64,AAAA"}) == [
        Text(text="A page."),
        Image(data="AAAA", mime_type="image/jpeg"),
    ]
    blocks = {"content": [{"type": "image", "data": "AA", "mimeType": "image/webp"}]}
    assert render_observation({"tool_name": "look", "result": blocks}) == [
        Image(data="AA", mime_type="image/webp")
    ]


def test_blocks_that_an_environment_laid_out_keep_their_order_before_the_other_fields() -> None:
    blocks = [
        {"type": "text", "text": "Left:"},
        {"type": "image", "data": "AA", "mimeType": "image/png"},
        {"type": "text", "text": "Which color?"},
    ]
    assert render_observation({"text": "Left:\nWhich color?", "content": blocks, "lives": 2}) == [
        Text(text="Left:"),
        Image(data="AA"),
        Text(text="Which color?"),
        Text(text="lives: 2"),
    ]


def test_several_images_are_told_apart_by_the_names_of_their_fields() -> None:
    front, rear = (f"data:image/png;base64,{data}" for data in ("AAAA", "BBBB"))
    assert render_observation({"speed": 3, "cameras": {"front": front, "rear": rear}}) == [
        Text(
            text='speed: 3\ncameras: {"front": "[image]", "rear": "[image]"}\n'
            "images: cameras.front, cameras.rear"
        ),
        Image(data="AAAA"),
        Image(data="BBBB"),
    ]


def test_an_image_in_a_tool_result_becomes_an_image() -> None:
    result = {"ok": True, "shot": "data:image/png;base64,AAAA"}
    assert render_observation({"tool_name": "look", "result": result}) == [
        Text(text='{"ok": true, "shot": "[image]"}'),
        Image(data="AAAA"),
    ]


def test_a_view_tells_what_is_shown_and_what_is_not() -> None:
    seen = build_view(
        {
            "metadata": {"seed": 3},
            "question": "17 + 4?",
            "info": {"level": 1},
            "answer": "21",
            "message": "17 + 4?",
            "score": None,
        }
    )
    assert seen.shown == ["question"]
    assert set(seen.hidden) == {"metadata", "info", "answer", "message"}


def test_only_what_is_new_in_a_conversation_is_shown() -> None:
    messages = [{"sender_id": -1, "content": text} for text in ("Rules.", "Board.")]
    messages.append({"sender_id": 1, "content": "[pass]"})
    assert render_observation({"messages": messages}) == "Rules.\nBoard.\n[Player 1] [pass]"
    assert (
        render_observation({"messages": messages}, shown_before="Rules.\nBoard.")
        == "[Player 1] [pass]"
    )
    assert (
        render_observation({"messages": messages[:1]}, shown_before="Rules.") == "(no new messages)"
    )
    assert render_observation({"prompt": "Rules.", "messages": messages[:2]}) == "Rules.\nBoard."


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
