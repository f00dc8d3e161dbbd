"""Read the body of a request, and check which model it names."""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from ludus.serve.model.api_errors import ApiError, from_validation_error

Body = TypeVar("Body", bound=BaseModel)


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
