"""Refuse prompts that cannot fit before they are rendered, which could take minutes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ludus.data.tool_schema import JsonObject
from ludus.serve.model.api_errors import ApiError

_MAX_CHARS_PER_TOKEN = 128
"""Few tokens are longer: runs of spaces."""
_USUAL_CHARS_PER_TOKEN = 8
"""Texts with more characters per token of the context are counted piece by piece."""
_PIECE_CHARS = 16_384
_EXTRA_TOKENS_PER_PIECE = 4
"""So many tokens at most are due to the cuts on both sides of a piece."""
_UNKNOWN_CONTEXT = 131_072
"""The most tokens of a prompt for a model that does not name its context."""
_IMAGE_TYPES = ("image_url", "input_image")
_JSON_FIELDS = ("tools", "chat_template_kwargs")
"""Fields that a template may write as JSON, so that each value is at least one token."""


class PromptLimit:
    """The most text that the model's context can hold."""

    def __init__(self, tokenizer: Any, context_length: int | None) -> None:
        self._tokenizer = tokenizer
        self._context_length = context_length or _UNKNOWN_CONTEXT

    @property
    def always_fits(self) -> int:
        """Texts that are not longer than this are not counted here, but when they are tokenized."""
        return self._context_length * _USUAL_CHARS_PER_TOKEN

    def check(self, texts: Sequence[str], *, num_objects: int = 0, param: str) -> None:
        """Raise if the texts of a prompt are together longer than the context.

        A message, a part of one, a call or a tool (`num_objects`) is at least one token. Takes up
        to the time of tokenizing a full context: to be called off the event loop.
        """
        context, num_chars = self._context_length, sum(map(len, texts))
        if num_chars <= self.always_fits and num_objects <= context:
            return
        if num_chars > context * _MAX_CHARS_PER_TOKEN or num_objects > context:
            raise _too_long(context, f"{num_chars:,} characters in {num_objects:,} objects", param)
        num_tokens = 0
        for piece in _pieces(texts):
            num_tokens += len(self._tokenizer(piece, add_special_tokens=False)["input_ids"])
            num_tokens -= _EXTRA_TOKENS_PER_PIECE
            if num_tokens > context:
                raise _too_long(context, "more", param)

    def check_size(self, data: Any, fields: Sequence[str]) -> None:
        """Raise if the prompt of a body has more objects than the context has tokens.

        Args:
            data: The JSON of a body that has not been validated, which would take long for it.
            fields: The fields that hold the prompt.
        """
        if isinstance(data, dict):
            for name in fields:
                self.check((), num_objects=_count_objects(data.get(name), name), param=name)

    def check_body(self, body: JsonObject) -> None:
        """Raise if the texts of a prompt, without its images, are together too long.

        Args:
            body: The fields that hold the prompt, as they are rendered.
        """
        texts, num_objects = list[str](), 0
        for name, value in body.items():
            shown = list(map(_without_images, value)) if isinstance(value, list) else value
            texts += _collect_texts(shown, with_names=name in _JSON_FIELDS)
            num_objects += _count_objects(shown, name)
        param = next((name for name, value in body.items() if value), "messages")
        self.check(texts, num_objects=num_objects, param=param)


def _too_long(context: int, length: str, param: str) -> ApiError:
    return ApiError(
        f"This model's maximum context length is {context} tokens, but the prompt has {length}.",
        param=param,
        code="context_length_exceeded",
    )


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        # Short strings are mostly names of fields, which a template may leave out.
        if len(text) > _MAX_CHARS_PER_TOKEN:
            for start in range(0, len(text), _PIECE_CHARS):
                yield text[start : start + _PIECE_CHARS]


def _without_images(item: Any) -> Any:
    """A message, or an item of the Responses API, without the parts that are images."""
    if not isinstance(item, dict):
        return item
    return {
        name: [part for part in value if not _is_image(part)] if isinstance(value, list) else value
        for name, value in item.items()
    }


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _IMAGE_TYPES


def _collect_texts(data: Any, *, with_names: bool) -> list[str]:
    """All strings of JSON data, and numbers as they are written; also the names of fields."""
    remaining, texts = [data], list[str]()
    while remaining:
        value = remaining.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            texts.extend(value if with_names else ())
            remaining.extend(value.values())
        elif isinstance(value, list):
            remaining.extend(value)
        elif value is not None:
            texts.append(str(value))
    return texts


def _count_objects(data: Any, name: str) -> int:
    """The number of objects in a field, or of all values in one that is rendered as JSON."""
    remaining, num_objects, counts_all = [data], 0, name in _JSON_FIELDS
    while remaining:
        value = remaining.pop()
        if isinstance(value, dict):
            num_objects += 1
            remaining.extend(value.values())
        elif isinstance(value, list):
            num_objects += counts_all
            remaining.extend(value)
        else:
            num_objects += counts_all
    return num_objects
