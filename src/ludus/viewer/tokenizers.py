"""Tokens as text, and rows under a chat template. Tokenizers are loaded from this machine only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

if TYPE_CHECKING:
    from ludus.curation.lint.student import Student


def forbid_downloads() -> None:
    """Keep the Hugging Face libraries off the network; to be called before they are imported."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer.json").is_file()


class Tokenizers:
    """The tokenizers of the models that were asked for. One request at a time uses them."""

    def __init__(self) -> None:
        self._students: dict[str, Student] = {}
        self._lock = Lock()

    def split_tokens(self, model: str, ids: Sequence[int]) -> list[str]:
        """The text of each token."""
        with self._lock:
            tokenizer = self._load(model).tokenizer
            vocabulary = len(tokenizer)
            if any(not 0 <= each < vocabulary for each in ids):
                raise RunError(f"These tokens are not of {model}: it has {vocabulary:,} tokens.")
            return [str(tokenizer.decode([each])) for each in ids]

    def render_row(self, model: str, row: JsonObject) -> list[JsonObject]:
        """The conversations of a row as the student sees them, in spans with and without loss."""
        from ludus.data.training_row import parse_training_row, row_kind

        if row_kind(row) is None:
            raise RunError("This row has no conversation to train on.")
        with self._lock:
            student = self._load(model)
            try:
                parsed = parse_training_row(row)
                rendered_row = student.render_row(parsed)
            except ValueError as error:
                raise RunError(f"The row cannot be rendered: it {error}.") from None
            return [
                {
                    "name": conversation.name,
                    "tokens": len(rendered.ids),
                    "loss_tokens": sum(rendered.mask),
                    "unmarked": None if student.template else student.chat_format,
                    "spans": [
                        {"text": span.text, "loss": span.has_loss, "special": span.special}
                        for span in rendered.text_spans(student.special_tokens)
                    ],
                }
                for conversation, rendered in zip(parsed.conversations, rendered_row, strict=True)
            ]

    def _load(self, name: str) -> Student:
        if name not in self._students:
            from ludus.curation.lint.student import Student

            self._students[name] = Student.load(name)
        return self._students[name]
