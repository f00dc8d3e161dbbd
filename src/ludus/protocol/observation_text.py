"""How an observation reads to a model: a pure function of what stood on the wire.

Both ends of the wire see the same dictionary, so an episode reads the same in process and over a
socket, and a foreign server needs no wrapper. Every field that carries information is shown, once:
the main text first and as it is, then the other fields by name. Not shown are fields that describe
the task to the infrastructure (metadata, info) or may hold the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ludus.data.content import Block, Content, Image, Text
from ludus.protocol.field_text import (
    NamedImages,
    is_chat,
    label_field,
    render_field,
    render_json_field,
)

MAIN_FIELDS = ("text", "question", "prompt", "message", "echoed_message", "scene_description")
"""The first of these that holds text is shown without its name."""
LEADING_FIELDS = ("goal", "instruction", "error")
"""Shown before the main text, which may be long: a whole web page."""
INTERNAL_FIELDS = ("info", "done", "reward", "rubric_reward", "episode_id")
"""Not shown, like every field whose name ends in `metadata`."""
_ANSWER_FIELD = re.compile(r"(^|_)(answers?|solution|ground_truth|secret(_\w+)?)$")
"""Fields that may hold the answer: not shown beside a main text, which may be the question."""
_GAME_ID = re.compile(r"\w+-v\d+(-\w+)*")
"""What TextArena writes into `prompt` once the rules have been told: `Sudoku-v0`."""
_MIN_REPEATED = 40
"""Characters from which a text that is part of another is a repetition and no coincidence."""
REPEATED_REASON, INTERNAL_REASON = "shown in another field", "for the infrastructure"
_EMPTY: tuple[Any, ...] = (None, "", [], {})

_BLOCK_KEYS = ("type", "text", "data", "mimeType", "mime_type")
_blocks: TypeAdapter[list[Text | Image]] = TypeAdapter(list[Block])


@dataclass(slots=True)
class ObservationView:
    """What a model sees of one observation, and what it does not see."""

    blocks: list[Text | Image] = field(default_factory=list)
    """What the environment laid out itself, in its order."""
    lines: list[str] = field(default_factory=list)
    images: NamedImages = field(default_factory=list)
    """The images of other fields, each with the name of its field."""
    shown: list[str] = field(default_factory=list)
    """The fields that are shown."""
    hidden: dict[str, str] = field(default_factory=dict)
    """The fields that hold something and are not shown, and why."""

    @property
    def content(self) -> Content:
        words = _join_lines(self.lines)
        if len(self.images) > 1:
            words = _join_lines(
                [*self.lines, "images: " + ", ".join(name for name, _ in self.images)]
            )
        images = [image for _, image in self.images]
        if not self.blocks and not images:
            return words
        return [*self.blocks, *([Text(text=words)] if words else []), *images]


def render_observation(observation: Mapping[str, Any], *, shown_before: str = "") -> Content:
    """What the model is shown: text, or blocks where there are images.

    `shown_before` is the part of the transcript that earlier observations have shown.
    """
    filled = [name for name in observation if observation[name] not in _EMPTY]
    if filled == ["text"] and isinstance(text := observation["text"], str):
        return text  # Most observations of most environments: a step should cost little.
    return build_view(observation, shown_before=shown_before).content


def build_view(observation: Mapping[str, Any], *, shown_before: str = "") -> ObservationView:
    """What the model sees of each field, and which fields it does not see."""
    fault = observation.get("error")
    if isinstance(fault, Mapping) and "message" in fault:
        return ObservationView(lines=[f"Error: {fault['message']}"], shown=["error"])
    if "tool_name" in observation and "result" in observation:
        result = render_tool_result(observation["result"])
        seen = ObservationView(shown=["result"], hidden=_internal_fields(observation))
        if isinstance(result, str):
            seen.lines.append(result)
        else:
            seen.blocks.extend(result)
        return seen
    return _ViewBuilder(observation, shown_before).build()


class _ViewBuilder:
    """Goes through the fields of an observation, and knows what has been shown of it already."""

    def __init__(self, observation: Mapping[str, Any], shown_before: str) -> None:
        self._observation = observation
        self._shown_before = shown_before
        self._main = next((name for name in MAIN_FIELDS if _is_text(observation.get(name))), None)
        # Blocks that the environment has laid out itself; `text` then holds the words of them.
        content = observation.get("content")
        self._view = ObservationView(blocks=_valid_blocks(content) if content else [])
        words = [block.text for block in self._view.blocks if isinstance(block, Text)]
        self._texts = [shown_before, *words, "\n".join(words)]

    def build(self) -> ObservationView:
        if self._view.blocks:
            self._view.shown.append("content")
        for name in self._field_order():
            if self._observation[name] in _EMPTY or name in self._view.shown:
                continue
            if reason := _reason_to_hide(name, self._observation, self._main):
                self._view.hidden[name] = reason
            else:
                self._show_field(name)
        return self._view

    def _field_order(self) -> list[str]:
        """The fields in the order in which they are shown; the rest in the order of the wire."""
        begin = [name for name in LEADING_FIELDS if name in self._observation]
        if self._main is not None:
            begin.append(self._main)
        return begin + [name for name in self._observation if name not in begin]

    def _show_field(self, name: str) -> None:
        value = self._observation[name]
        text: str = value
        if name != self._main:
            text = render_field(name, value, self._observation, self._view.images)
        if isinstance(value, str) and text and self._is_repeated(text.strip()):
            self._view.hidden[name] = REPEATED_REASON
            return
        if name == "messages" and is_chat(value):
            if not (text := self._new_messages(text)):
                self._view.hidden[name] = REPEATED_REASON
                return
            self._view.lines.append(text)
        elif text:
            self._view.lines.append(text if name == self._main else label_field(name, text))
        self._view.shown.append(name)
        self._texts.append(text)

    def _is_repeated(self, text: str) -> bool:
        """Whether it is the main text again, or a long part of what has been shown."""
        if self._main is not None and text == self._observation[self._main].strip():
            return any(text == shown.strip() for shown in self._texts)
        return len(text) >= _MIN_REPEATED and any(text in shown for shown in self._texts)

    def _new_messages(self, conversation: str) -> str:
        """What a conversation has beyond what earlier observations, or the prompt, have shown."""
        if self._shown_before and conversation.startswith(self._shown_before):
            rest = conversation.removeprefix(self._shown_before)
            return rest.strip("\n") or "(no new messages)"
        for shown in self._texts:
            if shown.strip() and conversation.startswith(shown.strip()):
                return conversation.removeprefix(shown.strip()).strip("\n")
        return conversation


def conversation_text(observation: Mapping[str, Any]) -> str:
    """The conversation in `messages`, which some servers (TextArena) send whole with every step."""
    messages = observation.get("messages")
    return render_field("messages", messages, observation, []) if is_chat(messages) else ""


def render_tool_result(result: Any) -> Content:
    """What a tool answered: text and MCP's content blocks as they are, the rest as JSON."""
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        blocks = [block for item in result["content"] for block in _mcp_block(item)]
        if all(isinstance(block, Text) for block in blocks):
            return "\n".join(block.text for block in blocks if isinstance(block, Text))
        return blocks
    images: NamedImages = []
    words = render_json_field("result", result, images)
    return [*([Text(text=words)] if words else []), *(i for _, i in images)] if images else words


def _mcp_block(item: Any) -> list[Text | Image]:
    """A block of MCP's that a model can be shown; none where it is of another kind (audio)."""
    if not isinstance(item, Mapping):
        return []
    if item.get("type") == "resource" and isinstance(item.get("resource"), Mapping):
        item = {"type": "text", "text": item["resource"].get("text")}
    return _valid_blocks([{key: item[key] for key in _BLOCK_KEYS if key in item}])


def _valid_blocks(content: Any) -> list[Text | Image]:
    """Blocks of text and images, or nothing where this is something else."""
    try:
        return _blocks.validate_python(content)
    except ValidationError:
        return []


def _reason_to_hide(name: str, observation: Mapping[str, Any], main: str | None) -> str:
    """Why a field is not shown; nothing where it is."""
    if _is_internal(name):
        return INTERNAL_REASON
    if main is not None and _ANSWER_FIELD.search(name):
        return "may hold the answer"
    if name == "message_length" and "echoed_message" in observation:
        return REPEATED_REASON
    if name == "last_action_error" and (not observation[name] or observation.get("error")):
        return REPEATED_REASON
    if name.endswith("_shape") and name.removesuffix("_shape") in observation:
        return "describes an array"
    return _reason_in_textarena(name, observation) if observation.get("messages") else ""


def _reason_in_textarena(name: str, observation: Mapping[str, Any]) -> str:
    value = observation[name]
    if name == "prompt" and isinstance(value, str) and _GAME_ID.fullmatch(value.strip()):
        return "only names the game"
    alone = len(observation.get("legal_players") or ()) == 1
    if name in ("current_player_id", "legal_players") and alone:
        return "there is one player"
    return ""


def _internal_fields(observation: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: INTERNAL_REASON for name, value in observation.items() if value and _is_internal(name)
    }


def _is_internal(name: str) -> bool:
    return name.endswith("metadata") or name in INTERNAL_FIELDS


def _join_lines(lines: Sequence[str]) -> str:
    """One under the other, with a blank line around what has several lines itself."""
    words = ""
    for before, line in zip(("", *lines), lines, strict=False):
        gap = "\n\n" if "\n" in before or "\n" in line else "\n"
        words += f"{gap}{line}" if words else line
    return words


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
