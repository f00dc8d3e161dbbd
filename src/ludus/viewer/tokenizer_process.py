"""Tokens as text, and rows under a chat template, computed in a separate process.

Tokenizers take hundreds of megabytes with everything that they import. The process is started at
the first request, and loads tokenizers only from this machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.data.tool_schema import JsonObject
from ludus.errors import LudusError, RunError

if TYPE_CHECKING:
    from ludus.curation.lint.student import Student


class TokenizerProcess:
    """Runs the functions below in one process."""

    @cached_property
    def _executor(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=_forbid_downloads
        )

    def split_tokens(self, model: str, ids: Sequence[int]) -> list[str]:
        """The text of each token."""
        result: list[str] = self._run(_split_tokens, model, ids)
        return result

    def render_row(self, model: str, row: JsonObject) -> list[JsonObject]:
        """The conversations of a row as the student sees them, in spans with and without loss."""
        result: list[JsonObject] = self._run(_render_row, model, row)
        return result

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            result, error = self._executor.submit(_call, function, *arguments).result()
        except BrokenProcessPool:
            del self.__dict__["_executor"]
            raise RunError("The process of the tokenizer has ended. Try again.") from None
        if error is not None:
            raise RunError(error)
        return result

    def close(self) -> None:
        if "_executor" in self.__dict__:
            self._executor.shutdown(wait=False, cancel_futures=True)


def has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer.json").is_file()


def _forbid_downloads() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _call(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str | None]:
    """Errors as text: not every exception can be sent to another process."""
    try:
        return function(*arguments), None
    except LudusError as error:
        return None, str(error)
    except ValueError as error:
        return None, f"The row cannot be rendered: it {error}."


@cache
def _load_student(name: str) -> Student:
    from ludus.curation.lint.student import Student
    from ludus.policy.load import load_tokenizer
    from ludus.policy.vision.processor import load_vision_processor

    tokenizer = load_tokenizer(name)
    return Student(name, tokenizer, lambda: load_vision_processor(name))


def _split_tokens(model: str, ids: Sequence[int]) -> list[str]:
    tokenizer = _load_student(model).tokenizer
    vocabulary = len(tokenizer)
    if any(not 0 <= each < vocabulary for each in ids):
        raise RunError(f"These tokens are not of {model}: it has {vocabulary:,} tokens.")
    return [str(tokenizer.decode([each])) for each in ids]


def _render_row(model: str, row: JsonObject) -> list[JsonObject]:
    from ludus.data.training_row import parse_training_row, row_kind

    student = _load_student(model)
    if row_kind(row) is None:
        raise RunError("This row has no conversation to train on.")
    parsed = parse_training_row(row)
    return [
        {
            "name": conversation.name,
            "tokens": len(rendered.ids),
            "loss_tokens": sum(rendered.mask),
            "unmarked": student.chat_format if isinstance(student.chat_format, str) else None,
            "spans": [
                {"text": span.text, "loss": span.has_loss, "special": span.special}
                for span in rendered.text_spans(student.special_tokens)
            ],
        }
        for conversation, rendered in zip(
            parsed.conversations, student.render_row(parsed), strict=True
        )
    ]
