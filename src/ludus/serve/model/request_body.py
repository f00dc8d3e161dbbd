"""The base of request bodies, and how they are read."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from ludus.serve.model.api_errors import ApiError, from_validation_error

Body = TypeVar("Body", bound=BaseModel)


class RequestBody(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        """Clients send null for fields that are not set."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


async def parse_body(request: Request, kind: type[Body]) -> Body:
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise from_validation_error(error) from None


def check_model(name: str, names: tuple[str, ...]) -> None:
    """Raise for a name that is none of these. Requests without a name mean the served model."""
    if name and name not in names:
        raise ApiError(
            f"The model {name!r} does not exist; this server has {names[0]!r}.",
            status=404,
            param="model",
            code="model_not_found",
        )
