"""Checks under a student: what its chat template and tokenizer do with a row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ludus.curation.lint.lint_rows import Conversation, SourceLocation, TrainingRow
from ludus.curation.lint.report import Finding, Level
from ludus.curation.lint.template_loss import (
    count_dropped_images,
    find_dropped_pieces,
    find_merged_whitespace,
    renders_list_repr,
)
from ludus.errors import RequestRefused, TemplateRefused, TemplateUnmarked
from ludus.policy.chat.chat_format import ChatFormat, find_chat_format_with_fallback
from ludus.policy.chat.rendering import RenderedConversation, render, render_pair, render_text
from ludus.policy.vision.processor import VisionProcessor
from ludus.policy.vision.row_images import (
    ContentPartError,
    check_row_placeholders,
    expand_image_tokens,
    row_has_images,
    row_image_urls,
    to_text_messages,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ERROR_CHECKS = ("drops-system-prompt", "drops-tools", "drops-tool-calls", "drops-tool-results")


@dataclass
class Student:
    """The tokenizer, chat template and image processor of the model to be trained."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    load_image_processor: Callable[[], VisionProcessor | None] = lambda: None
    """Called once, at the first row with images."""

    @cached_property
    def image_processor(self) -> VisionProcessor | None:
        return self.load_image_processor()

    @cached_property
    def chat_format(self) -> ChatFormat | str:
        """The chat format for training and play, or the reason why there is none."""
        try:
            return find_chat_format_with_fallback(self.tokenizer)
        except TemplateUnmarked as error:
            return str(error).partition(". ")[0]

    @property
    def is_unmarked(self) -> bool:
        """Whether the template does not tell which tokens are the assistant's."""
        return isinstance(self.chat_format, str)

    @property
    def template(self) -> str | None:
        """The training template; None: the tokenizer's own, without a loss mask."""
        return None if isinstance(self.chat_format, str) else self.chat_format.template

    @cached_property
    def special_tokens(self) -> frozenset[int]:
        added = self.tokenizer.added_tokens_decoder
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Special tokens, and the tokens that end a turn in the template.

        Both, because not every tokenizer marks its end-of-turn token as special.
        """
        if isinstance(self.chat_format, str):
            return self.special_tokens
        return self.special_tokens | self.chat_format.stop_token_ids

    def render_row(self, row: TrainingRow) -> list[RenderedConversation]:
        """Render each conversation of a row, with its loss mask."""
        conversations = [
            replace(conversation, messages=self._replace_images(conversation.messages))
            for conversation in row.conversations
        ]
        if not row.is_pair:
            (conversation,) = conversations
            rendered = render(
                self.tokenizer,
                conversation.messages,
                row.tools,
                self.template,
                num_prompt_messages=conversation.prompt_length,
            )
            return [self._expand_images(rendered, row.conversations[0])]
        chosen, rejected = conversations
        pair = render_pair(
            self.tokenizer,
            chosen.messages[: chosen.prompt_length],
            chosen.completion,
            rejected.completion,
            row.tools,
            self.template,
        )
        return list(map(self._expand_images, (pair.chosen, pair.rejected), row.conversations))

    def render_text(self, messages: Any, tools: Any) -> str:
        return render_text(self.tokenizer, self._replace_images(messages), tools, self.template)

    def tokenize(self, messages: Any, tools: Any, add_generation_prompt: bool) -> tuple[int, ...]:
        return render(
            self.tokenizer,
            self._replace_images(messages),
            tools,
            self.template,
            add_generation_prompt=add_generation_prompt,
        ).ids

    def _replace_images(self, messages: Any) -> Any:
        """Replace each image by its placeholder, if the student has vision."""
        if not row_has_images(messages) or self.image_processor is None:
            return messages
        return to_text_messages(messages, self.image_processor)

    def _expand_images(
        self, rendered: RenderedConversation, conversation: Conversation
    ) -> RenderedConversation:
        """Repeat each image placeholder as often as the image has tokens."""
        if not row_has_images(conversation.messages) or self.image_processor is None:
            return rendered
        urls = row_image_urls(conversation.messages)
        check_row_placeholders(rendered, self.image_processor, urls)
        return expand_image_tokens(rendered, self.image_processor, urls)


@dataclass(frozen=True, slots=True)
class RowCheck:
    """A row rendered with the student's template, and what was found."""

    conversations: list[RenderedConversation]
    """Empty if the template refuses the row."""
    findings: list[Finding]

    @property
    def length(self) -> int:
        """Number of tokens of the longest conversation, which has to fit into `max_length`."""
        return max((len(conversation.ids) for conversation in self.conversations), default=0)


def check_row_with_template(
    row: TrainingRow, location: SourceLocation, student: Student, *, max_length: int | None
) -> RowCheck:
    """Render a row with the student's template and check the result."""
    if not all(conversation.messages for conversation in row.conversations):
        return RowCheck([], [])
    try:
        conversations = student.render_row(row)
    except (TemplateRefused, RequestRefused, ContentPartError) as error:
        return RowCheck([], [Finding(location, "template-refuses", "error", str(error))])
    problems = [
        *_check_template(row, student),
        *(
            problem
            for rendered in conversations
            for problem in _check_tokens(rendered, student, max_length)
        ),
    ]
    return RowCheck(conversations, [Finding(location, *problem) for problem in problems])


def _check_template(row: TrainingRow, student: Student) -> Iterator[tuple[str, Level, str]]:
    """Yield check, level and message of what the template does to the row's contents."""
    if isinstance(student.chat_format, str):
        yield "template-unmarked", "error", student.chat_format
    if row.tools == []:
        messages = row.conversations[0].messages
        with suppress(TemplateRefused):
            if student.render_text(messages, []) != student.render_text(messages, None):
                message = "`tools` is an empty list, and the template still announces tools"
                yield "empty-tools", "warning", message
    for conversation in row.conversations:
        if renders_list_repr(conversation, row, student.render_text):
            message = "content is a list of parts, and the template renders its Python repr"
            yield "content-as-list", "error", message
        dropped, images = count_dropped_images(conversation, row, student.render_text)
        if dropped:
            yield "drops-image", "warning", f"the template drops {dropped} of {images} images"
        for kind, message in find_dropped_pieces(conversation, row, student.render_text):
            check = f"drops-{kind}"
            yield check, "error" if check in _ERROR_CHECKS else "warning", message
        for message in find_merged_whitespace(conversation, row, student.tokenize):
            yield "prompt-swallows", "warning", message
        if _double_encodes_arguments(conversation, row, student):
            message = "arguments are JSON strings, which the template encodes a second time"
            yield "quoted-arguments", "warning", message


def _check_tokens(
    rendered: RenderedConversation, student: Student, max_length: int | None
) -> Iterator[tuple[str, Level, str]]:
    """Yield check, level and message of what is wrong with the tokens and the loss mask."""
    if not student.is_unmarked and not any(rendered.mask):
        yield "no-loss", "error", "no token has a loss"
    elif not student.is_unmarked:
        stops = [
            last_visible_token(student, rendered, end) in student.stop_tokens
            for _, end in rendered.spans
        ]
        if not any(stops):
            message = "no end-of-turn token has a loss: the student would not learn to stop"
            yield "stop-token", "error", message
        elif not stops[-1]:
            yield "stop-token", "warning", "the end-of-turn token of the last turn has no loss"
    if max_length is None or len(rendered.ids) <= max_length:
        return
    yield "too-long", "warning", f"{len(rendered.ids):,} tokens, of which {max_length:,} are kept"
    if any(rendered.mask) and not any(rendered.truncate(max_length).mask):
        first = rendered.spans[0][0]
        yield "cut-off", "error", f"the first token with a loss is number {first + 1:,}"


def last_visible_token(student: Student, rendered: RenderedConversation, end: int) -> int:
    """Return the last token before `end` that is not whitespace; -1 if there is none."""
    ids = rendered.ids[:end]
    return next((i for i in reversed(ids) if str(student.tokenizer.decode([i])).strip()), -1)


def _double_encodes_arguments(
    conversation: Conversation, row: TrainingRow, student: Student
) -> bool:
    """Whether the template JSON-encodes arguments that are JSON strings already."""
    parsed = []  # The messages with arguments as objects.
    for message in conversation.messages:
        calls = []
        for call in message.get("tool_calls") or ():
            function = call.get("function", call)
            with suppress(TypeError, ValueError):
                changed = {**function, "arguments": json.loads(function.get("arguments"))}
                call = {**call, "function": changed} if "function" in call else changed
            calls.append(call)
        parsed.append({**message, "tool_calls": calls} if calls else message)
    if parsed == conversation.messages:
        return False
    try:
        text = student.render_text(conversation.messages, row.tools)
        return student.render_text(parsed, row.tools) != text and '\\"' in text
    except TemplateRefused:
        return False
