"""The checks that need a student: what its template and tokenizer make of a row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ludus.curation.lint.dropped import RenderText, find_dropped_pieces
from ludus.curation.lint.finding import Finding, Level
from ludus.curation.lint.opening import find_merged_whitespace
from ludus.curation.lint.parts import count_dropped_images, renders_list_repr
from ludus.curation.lint.rows import Conversation, SourceLocation, TrainingRow
from ludus.errors import RequestRefused, TemplateRefused, TemplateUnmarked
from ludus.policy.chat.chat_format import ChatFormat, find_chat_format_with_fallback
from ludus.policy.chat.rendering import RenderedConversation, render, render_pair, render_text
from ludus.policy.vision.processor import VisionProcessor
from ludus.policy.vision.row_images import (
    ContentPartError,
    check_placeholders,
    expand_image_tokens,
    has_images,
    image_urls,
    to_text_messages,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ERROR_CHECKS = ("drops-system-prompt", "drops-tools", "drops-tool-calls", "drops-tool-results")


@dataclass
class Student:
    """A tokenizer, and what can be known of it before any row is seen."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    load_image_processor: Callable[[], VisionProcessor | None] = lambda: None
    """How it is shown images; asked once, where rows have some."""

    @cached_property
    def image_processor(self) -> VisionProcessor | None:
        return self.load_image_processor()

    @cached_property
    def chat_format(self) -> ChatFormat | str:
        """How it is spoken to in training and play; or why that cannot be had."""
        try:
            return find_chat_format_with_fallback(self.tokenizer)
        except TemplateUnmarked as error:
            return str(error).partition(". ")[0]

    @property
    def is_unmarked(self) -> bool:
        """Whether the assistant's tokens cannot be told from others."""
        return isinstance(self.chat_format, str)

    @property
    def template(self) -> str | None:
        """What conversations are trained under; None: the tokenizer's own, and nothing is."""
        return None if isinstance(self.chat_format, str) else self.chat_format.template

    @cached_property
    def special_tokens(self) -> frozenset[int]:
        """Tokens that no words become: they begin and end turns."""
        known = self.tokenizer.added_tokens_decoder
        return frozenset(at for at, token in known.items() if token.special)

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end a turn: the special ones, and what the template ends turns with.

        The second, because not every tokenizer calls its own end-of-turn token special.
        """
        return self.special_tokens | (
            frozenset() if isinstance(self.chat_format, str) else self.chat_format.stop_token_ids
        )

    def render_row(self, row: TrainingRow) -> list[RenderedConversation]:
        """Each side of a row with the tokens that are trained on."""
        sides = [
            replace(side, messages=self._replace_images(side.messages))
            for side in row.conversations
        ]
        if not row.is_pair:
            (side,) = sides
            made = render(
                self.tokenizer,
                side.messages,
                row.tools,
                self.template,
                num_prompt_messages=side.prompt_length,
            )
            return [self._expand_images(made, row.conversations[0])]
        chosen, rejected = sides
        pair = render_pair(
            self.tokenizer,
            chosen.messages[: chosen.prompt_length],
            chosen.messages[chosen.prompt_length :],
            rejected.messages[rejected.prompt_length :],
            row.tools,
            self.template,
        )
        return list(map(self._expand_images, (pair.chosen, pair.rejected), row.conversations))

    def render_text(self, messages: Any, tools: Any) -> str:
        return render_text(self.tokenizer, self._replace_images(messages), tools, self.template)

    def tokenize(self, messages: Any, tools: Any, asks: bool) -> tuple[int, ...]:
        talk = self._replace_images(messages)
        return render(self.tokenizer, talk, tools, self.template, add_generation_prompt=asks).ids

    def _expand_images(
        self, made: RenderedConversation, side: Conversation
    ) -> RenderedConversation:
        """With as many tokens for each image as it has."""
        if not has_images(side.messages) or self.image_processor is None:
            return made
        urls = image_urls(side.messages)
        check_placeholders(made, self.image_processor, urls)
        return expand_image_tokens(made, self.image_processor, urls)

    def _replace_images(self, messages: Any) -> Any:
        """With a mark for each image, if there are any and the student sees."""
        if not has_images(messages) or self.image_processor is None:
            return messages
        return to_text_messages(messages, self.image_processor)


@dataclass(frozen=True, slots=True)
class RowCheck:
    """A row under the student's template."""

    sides: list[RenderedConversation]
    findings: list[Finding]

    @property
    def length(self) -> int:
        """Of the longer side: that is the one that has to fit."""
        return max((len(side.ids) for side in self.sides), default=0)


def check_row_with_template(
    row: TrainingRow, location: SourceLocation, student: Student, *, max_length: int | None
) -> RowCheck:
    """Render a row and check what came of it."""
    if not all(side.messages for side in row.conversations):
        return RowCheck([], [])
    try:
        sides = student.render_row(row)
    except (TemplateRefused, RequestRefused, ContentPartError) as error:
        return RowCheck([], [Finding(location, "template-refuses", "error", str(error))])
    found = list(_check_template(row, location, student))
    for rendered in sides:
        found += (
            Finding(location, check, level, words)
            for check, level, words in _check_tokens(rendered, student, max_length)
        )
    return RowCheck(sides, found)


def _check_template(
    row: TrainingRow, location: SourceLocation, student: Student
) -> Iterator[Finding]:
    write = student.render_text
    if isinstance(student.chat_format, str):
        yield Finding(location, "template-unmarked", "error", student.chat_format)
    if _renders_empty_tools(row, write):
        words = "`tools` is an empty list, for which the template writes of tools all the same"
        yield Finding(location, "empty-tools", "warning", words)
    for side in row.conversations:
        if renders_list_repr(side, row, write):
            words = "content is a list of parts, and the template writes it out as Python does"
            yield Finding(location, "content-as-list", "error", words)
        lost, images = count_dropped_images(side, row, write)
        if lost:
            words = f"the template leaves out {lost} of {images} images"
            yield Finding(location, "drops-image", "warning", words)
        for kind, words in find_dropped_pieces(side, row, write):
            check = f"drops-{kind}"
            level: Level = "error" if check in _ERROR_CHECKS else "warning"
            yield Finding(location, check, level, words)
        for words in find_merged_whitespace(side, row, student.tokenize):
            yield Finding(location, "prompt-swallows", "warning", words)
        if _double_encodes_arguments(side, row, student):
            words = "arguments are strings of JSON, which the template quotes once more"
            yield Finding(location, "quoted-arguments", "warning", words)


def _renders_empty_tools(row: TrainingRow, render_text: RenderText) -> bool:
    """Whether no tools would be written otherwise than a list of none."""
    if row.tools != []:
        return False
    messages = row.conversations[0].messages
    try:
        return render_text(messages, []) != render_text(messages, None)
    except TemplateRefused:
        return False


def _check_tokens(
    rendered: RenderedConversation, student: Student, max_length: int | None
) -> Iterator[tuple[str, Level, str]]:
    if not student.is_unmarked and not any(rendered.mask):
        yield "no-loss", "error", "no token in it bears the loss"
    elif not student.is_unmarked:
        yield from _check_stop_tokens(rendered, student)
    if max_length is None or len(rendered.ids) <= max_length:
        return
    yield "too-long", "warning", f"{len(rendered.ids):,} tokens, of which {max_length:,} are kept"
    if any(rendered.mask) and not any(rendered.truncate(max_length).mask):
        first = rendered.spans[0][0]
        yield "cut-off", "error", f"the first token that bears the loss is number {first + 1:,}"


def _check_stop_tokens(
    rendered: RenderedConversation, student: Student
) -> Iterator[tuple[str, Level, str]]:
    """Whether the student would learn to end its turn."""
    ends = [
        last_visible_token(student, rendered, end) in student.stop_tokens
        for _, end in rendered.spans
    ]
    if not any(ends):
        yield "stop-token", "error", "no turn's end is trained: the student would not learn to stop"
    elif not ends[-1]:
        yield "stop-token", "warning", "the end of the last turn is not trained"


def last_visible_token(student: Student, rendered: RenderedConversation, end: int) -> int:
    """The token before `end` that is not only white space."""
    ids = rendered.ids[:end]
    return next((i for i in reversed(ids) if str(student.tokenizer.decode([i])).strip()), -1)


def _double_encodes_arguments(side: Conversation, row: TrainingRow, student: Student) -> bool:
    """Whether objects in place of strings of JSON would be written otherwise."""
    parsed = [_parse_message_arguments(message) for message in side.messages]
    if parsed == side.messages:
        return False
    try:
        given = student.render_text(side.messages, row.tools)
        return student.render_text(parsed, row.tools) != given and '\\"' in given
    except TemplateRefused:
        return False


def _parse_message_arguments(message: dict[str, Any]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    return {
        **message,
        "tool_calls": [_parse_call_arguments(call) for call in message["tool_calls"]],
    }


def _parse_call_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    try:
        parsed = json.loads(function.get("arguments"))
    except (TypeError, ValueError):
        return call
    changed = {**function, "arguments": parsed}
    return {**call, "function": changed} if "function" in call else changed
