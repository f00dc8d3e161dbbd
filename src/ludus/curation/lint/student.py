"""A student model's view of training rows: rendered with its chat template, and their lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

from ludus.data.training_row import TrainingRow, quantile, suggest_max_length
from ludus.errors import TemplateUnmarked
from ludus.policy.chat.chat_format import ChatFormat, find_chat_format
from ludus.policy.chat.encoding import Messages, Tools
from ludus.policy.chat.rendering import RenderedConversation, render, render_text
from ludus.policy.load import load_tokenizer
from ludus.policy.vision.processor import VisionProcessor, load_vision_processor
from ludus.policy.vision.training_images import expand_image_tokens, row_has_images, separate_images

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Percentiles of the number of tokens per row."""

    student: str
    count: int
    p50: int
    p95: int
    p99: int
    max: int
    max_length: int
    """Suggested `max_length` for training: at most 1 % of the rows are longer, and a few outliers
    do not raise it."""
    refused: int = 0
    """Rows that the student's template refuses, which have no length."""

    @classmethod
    def from_counts(
        cls, counts: Mapping[int, int], student: str, *, refused: int = 0
    ) -> TokenLengths:
        """Build from the number of rows by length."""
        return cls(
            student=student,
            count=sum(counts.values()),
            p50=quantile(counts, 0.50),
            p95=quantile(counts, 0.95),
            p99=quantile(counts, 0.99),
            max=max(counts, default=0),
            max_length=suggest_max_length(counts),
            refused=refused,
        )

    def __str__(self) -> str:
        lengths = f"p50 {self.p50:,}, p95 {self.p95:,}, p99 {self.p99:,}, max {self.max:,}"
        refused = f"; {self.refused:,} refused by the template" if self.refused else ""
        return f"tokens of {self.student}: {lengths}; max_length {self.max_length}{refused}"


@dataclass
class Student:
    """The tokenizer, chat template and image processor of the model to be trained."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    load_image_processor: Callable[[], VisionProcessor | None] = lambda: None
    """Called once, at the first row with images."""

    @classmethod
    def load(cls, name: str) -> Self:
        """Load the tokenizer of a folder or of a model on the Hub."""
        tokenizer = load_tokenizer(name)
        return cls(name, tokenizer, lambda: load_vision_processor(name))

    @cached_property
    def image_processor(self) -> VisionProcessor | None:
        return self.load_image_processor()

    @cached_property
    def chat_format(self) -> ChatFormat | str:
        """The chat format for training and play, or the reason why there is none."""
        try:
            return find_chat_format(self.tokenizer, require_tools=False)
        except TemplateUnmarked as error:
            return str(error).partition(". ")[0]

    @property
    def template(self) -> str | None:
        """The training template; None: the tokenizer's, without a loss mask."""
        return None if isinstance(self.chat_format, str) else self.chat_format.template

    @cached_property
    def special_tokens(self) -> frozenset[int]:
        added = self.tokenizer.added_tokens_decoder
        return frozenset(token_id for token_id, token in added.items() if token.special)

    def render_row(self, row: TrainingRow) -> list[RenderedConversation]:
        """Render each conversation of a row, with its loss mask."""
        rendered = []
        for conversation in row.conversations:
            texts, urls = self._separate_images(conversation.messages)
            side = render(
                self.tokenizer,
                texts,
                row.tools,
                self.template,
                num_prompt_messages=conversation.prompt_length,
            )
            if urls and self.image_processor is not None:
                # Repeat each image placeholder as often as the image has tokens.
                self.image_processor.check_placeholders(side.ids, len(urls))
                side = expand_image_tokens(side, self.image_processor, urls)
            rendered.append(side)
        return rendered

    def render_text(self, messages: Messages, tools: Tools) -> str:
        texts, _ = self._separate_images(messages)
        return render_text(self.tokenizer, texts, tools, self.template)

    def _separate_images(self, messages: Messages) -> tuple[Messages, Sequence[str]]:
        """Replace each image by its placeholder, if the student has vision; and their URLs."""
        if not row_has_images(messages) or self.image_processor is None:
            return messages, ()
        return separate_images(messages, self.image_processor)
