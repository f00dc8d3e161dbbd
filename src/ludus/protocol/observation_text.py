"""Render observations for a model.

Rendering is a pure function of the observation's JSON, so that an episode reads the same in process
and over a connection, and any OpenEnv server can be played. Every field with information is shown
once: the main text first, without its name, then the other fields with their names. Fields for the
infrastructure (metadata, info) and fields that may hold the answer are not shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ludus.data.messages import Content, Image, Text, parse_blocks
from ludus.protocol.field_text import (
    NamedImages,
    is_chat_field,
    label_field,
    render_field,
    render_json_field,
)

MAIN_FIELDS = ("text", "question", "prompt", "message", "echoed_message", "scene_description")
"""The first of these fields that holds text is the main text."""
LEADING_FIELDS = ("goal", "instruction", "error")
"""Shown before the main text, which may be as long as a web page."""
_INTERNAL_FIELD = re.compile(r"(^(info|done|reward|rubric_reward|episode_id)|metadata)\Z")
"""Fields for the infrastructure, which are not shown."""
_ANSWER_FIELD = re.compile(r"(^|_)(answers?|solution|ground_truth|secret(_\w+)?)$")
"""Fields that may hold the answer: not shown if a main text may be the question."""
_GAME_ID = re.compile(r"\w+-v\d+(-\w+)*")
"""What TextArena sends as `prompt` after the rules: `Sudoku-v0`."""
_REPEATED_FIELDS = {
    "info_state": (
        *("info_state", "legal_actions", "game_phase"),
        *("current_player_id", "opponent_last_action"),
    ),
    "legal_players": ("legal_players", "prompt", "messages", "current_player_id"),
    "actions_left": ("axtree_txt",),
}
"""The fields of OpenSpiel's, TextArena's and our browsergym's observations that a text beside them
repeats in other words, by a field that tells these observations from others."""
_MIN_REPEATED = 40
"""Minimum length of a text that counts as a repetition when it is part of another one."""
_EMPTY: tuple[Any, ...] = (None, "", [], {})

_BLOCK_KEYS = ("type", "text", "data", "mimeType", "mime_type")


@dataclass(slots=True)
class ObservationView:
    """What a model is shown of an observation, and what is hidden."""

    blocks: list[Text | Image] = field(default_factory=list)
    """Content blocks that the environment sent, in order."""
    lines: list[str] = field(default_factory=list)
    images: NamedImages = field(default_factory=list)
    """Images of other fields, with the names of the fields."""
    shown: list[str] = field(default_factory=list)
    """The names of the fields that are shown."""
    hidden: list[str] = field(default_factory=list)
    """The names of the fields that are not shown, without empty ones."""

    @property
    def content(self) -> Content:
        lines = self.lines
        if len(self.images) > 1:
            lines = [*lines, "images: " + ", ".join(name for name, _ in self.images)]
        text = ""
        for previous, line in zip(("", *lines), lines, strict=False):
            # An empty line separates a text of several lines from its neighbours.
            separator = "\n\n" if "\n" in previous or "\n" in line else "\n"
            text += f"{separator}{line}" if text else line
        images = [image for _, image in self.images]
        if not self.blocks and not images:
            return text
        return [*self.blocks, *([Text(text=text)] if text else []), *images]


def render_observation(observation: Mapping[str, Any], *, shown_before: str = "") -> Content:
    """Render an observation: text, or content blocks if there are images.

    `shown_before` is the part of the conversation that earlier observations have shown.
    """
    filled = [name for name in observation if observation[name] not in _EMPTY]
    if filled in (["text"], ["metadata", "text"]) and isinstance(observation["text"], str):
        return observation["text"]  # A fast path for the most common observations.
    return build_view(observation, shown_before=shown_before).content


def build_view(observation: Mapping[str, Any], *, shown_before: str = "") -> ObservationView:
    """Decide which fields of an observation are shown, and how."""
    fault = observation.get("error")
    if isinstance(fault, Mapping) and "message" in fault:
        return ObservationView(lines=[f"Error: {fault['message']}"], shown=["error"])
    if "tool_name" in observation and "result" in observation:
        result = render_tool_result(observation["result"])
        internal = [
            name for name, value in observation.items() if value and _INTERNAL_FIELD.search(name)
        ]
        view = ObservationView(shown=["result"], hidden=internal)
        if isinstance(result, str):
            view.lines.append(result)
        else:
            view.blocks.extend(result)
        return view
    return _ViewBuilder(observation, shown_before).build()


class _ViewBuilder:
    """Goes through the fields of an observation, and leaves out repetitions."""

    def __init__(self, observation: Mapping[str, Any], shown_before: str) -> None:
        self._observation = observation
        self._shown_before = shown_before
        self._main = next(
            (
                name
                for name in MAIN_FIELDS
                if isinstance(observation.get(name), str) and observation[name]
            ),
            None,
        )
        # Content blocks of the environment; `text` then holds their text again.
        content = observation.get("content")
        self._view = ObservationView(blocks=parse_blocks(content) if content else [])
        texts = [block.text for block in self._view.blocks if isinstance(block, Text)]
        self._texts = [shown_before, *texts, "\n".join(texts)]

    def build(self) -> ObservationView:
        """Show the leading fields, then the main text, then the other fields."""
        if self._view.blocks:
            self._view.shown.append("content")
        first = [name for name in LEADING_FIELDS if name in self._observation]
        if self._main is not None:
            first.append(self._main)
        for name in (*first, *(name for name in self._observation if name not in first)):
            if self._observation[name] in _EMPTY or name in self._view.shown:
                continue
            if self._is_hidden(name) or not self._show_field(name):
                self._view.hidden.append(name)
        return self._view

    def _is_hidden(self, name: str) -> bool:
        """Whether a field is for the infrastructure, may hold the answer, or repeats another."""
        observation = self._observation
        value = observation[name]
        if _INTERNAL_FIELD.search(name) or (
            name == "message_length" and "echoed_message" in observation
        ):
            return True
        if self._main is not None and _ANSWER_FIELD.search(name):
            return True
        if name == "last_action_error" and (not value or observation.get("error")):
            return True
        if self._main == "text" and any(
            field in observation and name in repeated
            for field, repeated in _REPEATED_FIELDS.items()
        ):
            return True
        if name.endswith("_shape") and name.removesuffix("_shape") in observation:
            return True
        if not observation.get("messages"):
            return False
        # TextArena, which names the game and, with one player, its turns.
        if name == "prompt" and isinstance(value, str) and _GAME_ID.fullmatch(value.strip()):
            return True
        alone = len(observation.get("legal_players") or ()) == 1
        return alone and name in ("current_player_id", "legal_players")

    def _show_field(self, name: str) -> bool:
        """Show a field; False if all of it has been shown before."""
        value = self._observation[name]
        text: str = value
        if name != self._main:
            text = render_field(name, value, self._observation, self._view.images)
        if isinstance(value, str) and text and self._is_repeated(text.strip()):
            return False
        if name == "messages" and is_chat_field(value):
            if not (text := self._new_messages(text)):
                return False
            self._view.lines.append(text)
        elif text:
            self._view.lines.append(text if name == self._main else label_field(name, text))
        self._view.shown.append(name)
        self._texts.append(text)
        return True

    def _is_repeated(self, text: str) -> bool:
        """Whether a text is the main text, or a long part of a text, that was shown already."""
        if self._main is not None and text == self._observation[self._main].strip():
            return any(text == shown.strip() for shown in self._texts)
        return len(text) >= _MIN_REPEATED and any(text in shown for shown in self._texts)

    def _new_messages(self, conversation: str) -> str:
        """The part of a conversation that neither earlier observations nor the prompt showed."""
        if self._shown_before and conversation.startswith(self._shown_before):
            rest = conversation.removeprefix(self._shown_before)
            return rest.strip("\n") or "(no new messages)"
        for shown in self._texts:
            if shown.strip() and conversation.startswith(shown.strip()):
                return conversation.removeprefix(shown.strip()).strip("\n")
        return conversation


def conversation_text(observation: Mapping[str, Any]) -> str:
    """The text of `messages`, which some servers (TextArena) send in full with every step."""
    messages = observation.get("messages")
    return render_field("messages", messages, observation, []) if is_chat_field(messages) else ""


def render_tool_result(result: Any) -> Content:
    """Render the result of a tool: text and MCP's content blocks as they are, the rest as JSON."""
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        blocks: list[Text | Image] = []
        for item in result["content"]:
            if not isinstance(item, Mapping):
                continue
            block = item
            if item.get("type") == "resource" and isinstance(item.get("resource"), Mapping):
                block = {"type": "text", "text": item["resource"].get("text")}
            # Blocks of other types, such as audio, are left out.
            blocks += parse_blocks([{key: block[key] for key in _BLOCK_KEYS if key in block}])
        if all(isinstance(block, Text) for block in blocks):
            return "\n".join(block.text for block in blocks if isinstance(block, Text))
        return blocks
    images: NamedImages = []
    text = render_json_field("result", result, images)
    if not images:
        return text
    return [*([Text(text=text)] if text else []), *(image for _, image in images)]
