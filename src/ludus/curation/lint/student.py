"""The student: the model to be trained, as far as lint needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ludus.data.tool_schema import JsonObject
from ludus.data.training_row import RowConversation, TrainingRow
from ludus.errors import TemplateUnmarked
from ludus.policy.chat.chat_format import ChatFormat, find_chat_format_with_fallback
from ludus.policy.chat.encoding import content_guard
from ludus.policy.chat.rendering import RenderedConversation, render, render_text
from ludus.policy.vision.processor import VisionProcessor
from ludus.policy.vision.training_images import (
    expand_image_tokens,
    row_has_images,
    separate_images,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
        rendered = (
            render(
                self.tokenizer,
                self._replace_images(conversation.messages),
                row.tools,
                self.template,
                num_prompt_messages=conversation.prompt_length,
            )
            for conversation in row.conversations
        )
        return list(map(self._expand_images, rendered, row.conversations))

    def render_text(self, messages: Any, tools: Any) -> str:
        return render_text(self.tokenizer, self._replace_images(messages), tools, self.template)

    def find_control_tokens(self, message: JsonObject, tools: Any) -> tuple[str, ...]:
        """The control tokens of the template that are written in a message."""
        template = self.tokenizer.get_chat_template(self.template, tools)
        return content_guard(self.tokenizer, template).mark([message])[2]

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
        return separate_images(messages, self.image_processor)[0]

    def _expand_images(
        self, rendered: RenderedConversation, conversation: RowConversation
    ) -> RenderedConversation:
        """Repeat each image placeholder as often as the image has tokens."""
        if not row_has_images(conversation.messages) or self.image_processor is None:
            return rendered
        _, urls = separate_images(conversation.messages, self.image_processor)
        self.image_processor.check_placeholders(rendered.ids, len(urls))
        return expand_image_tokens(rendered, self.image_processor, urls)
