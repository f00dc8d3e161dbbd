"""The base of request bodies, and how they are read."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import Annotated, Any, ClassVar, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from ludus.policy.runtime import MAX_CHARS_ON_LOOP, run_off_loop
from ludus.serve.model.api_errors import ApiError, from_validation_error
from ludus.serve.model.prompt_limit import PromptLimit

_PARSING_LARGE_BODY = Lock()
"""Parsing holds the GIL and takes memory, so that large bodies are parsed one after the other."""

Body = TypeVar("Body", bound="RequestBody")
Item = TypeVar("Item")
Items = Annotated[list[Item], Field(fail_fast=True)]
"""A list whose first error is reported: a million of them would take gigabytes."""


class RequestBody(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    prompt_fields: ClassVar[tuple[str, ...]] = ()
    """Fields whose texts are one prompt."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        """Clients send null for fields that are not set."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


async def parse_body(request: Request, kind: type[Body], limit: PromptLimit | None = None) -> Body:
    content = await request.body()
    if len(content) <= MAX_CHARS_ON_LOOP:
        return _parse(content, kind, limit)
    return await run_off_loop(_parse_alone, content, kind, limit)


def _parse_alone(content: bytes, kind: type[Body], limit: PromptLimit | None) -> Body:
    with _PARSING_LARGE_BODY:
        return _parse(content, kind, limit)


def _parse(content: bytes, kind: type[Body], limit: PromptLimit | None) -> Body:
    fields = kind.prompt_fields
    may_be_too_long = limit is not None and fields and len(content) > limit.always_fits
    if limit is not None and may_be_too_long:
        with suppress(ValueError):  # Validation reports what is no JSON.
            limit.check_size(from_json(content), fields)
    try:
        body = kind.model_validate_json(content)
    except ValidationError as error:
        raise from_validation_error(error) from None
    if limit is not None and may_be_too_long:
        # Warnings: the items of the Responses API have no tag that the serializer knows.
        shown = body.model_dump(include=set(fields), exclude_defaults=True, warnings=False)
        limit.check_body(shown)
    return body


def check_model(name: str, names: tuple[str, ...]) -> None:
    """Raise for a name that is none of these. Requests without a name mean the served model."""
    if name and name not in names:
        raise ApiError(
            f"The model {name[:100]!r} does not exist; this server has {names[0]!r}.",
            status=404,
            param="model",
            code="model_not_found",
        )
