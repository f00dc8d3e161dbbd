"""Errors and ids in the format of OpenAI's API."""

from __future__ import annotations

import secrets
from http import HTTPStatus

from fastapi.responses import JSONResponse
from pydantic import ValidationError

from ludus.data.tool_schema import JsonObject
from ludus.serve.access import Refusal

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """A request that is not answered, with the fields of OpenAI's error object."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, headers

    def to_json(self) -> JsonObject:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        fields = {
            "message": str(self),
            "type": _TYPES.get(self.status, kind),
            "param": self.param,
            "code": self.code,
        }
        return {"error": fields}

    def to_response(self) -> JSONResponse:
        return JSONResponse(self.to_json(), self.status, headers=self.headers)


def context_error(context: int, length: str) -> ApiError:
    return ApiError(
        f"This model's maximum context length is {context} tokens, but the prompt has {length}.",
        param="messages",
        code="context_length_exceeded",
    )


def from_refusal(refusal: Refusal) -> ApiError:
    """The error for a request that access control refuses."""
    is_key = refusal.status == HTTPStatus.UNAUTHORIZED
    return ApiError(
        refusal.detail,
        status=refusal.status,
        code="invalid_api_key" if is_key else None,
        headers={"WWW-Authenticate": "Bearer"} if is_key else None,
    )


def from_validation_error(error: ValidationError) -> ApiError:
    """The error for an invalid request body: its first problem, and in which field."""
    first = error.errors(include_url=False, include_context=False)[0]
    param = ".".join(str(part) for part in first["loc"]) or None
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(f"{param}: {message}" if param else message, param=param)


def new_id(prefix: str, separator: str = "_") -> str:
    return f"{prefix}{separator}{secrets.token_hex(12)}"


def to_api_error(error: Exception) -> ApiError:
    """The error as sent to clients; errors of the model or the engine may pass."""
    return error if isinstance(error, ApiError) else ApiError(str(error), status=503)
