"""JSON-RPC 2.0, as MCP and OpenEnv's session methods use it."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class RpcCode(IntEnum):
    """The error codes in use."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    SERVER_ERROR = -32000


class RpcRequest(BaseModel):
    """A request; without an id it is a notification, which has no response."""

    model_config = ConfigDict(extra="forbid")

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    id: str | int | None = None


class RpcError(Exception):
    """An error response to a request."""

    def __init__(
        self, code: RpcCode, message: str, *, data: Any = None, id: str | int | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.data, self.id = code, data, id


def parse_request(body: str | bytes | dict[str, Any]) -> RpcRequest:
    try:
        if isinstance(body, dict):
            return RpcRequest.model_validate(body)
        return RpcRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise RpcError(RpcCode.PARSE_ERROR, first["msg"]) from None
        where = ".".join(str(part) for part in first["loc"])
        raise RpcError(
            RpcCode.INVALID_REQUEST, f"Invalid request: {where}: {first['msg']}"
        ) from None


def success_response(result: Any, id: str | int | None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def error_response(error: RpcError, id: str | int | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = {"code": int(error.code), "message": str(error)}
    if error.data is not None:
        fields["data"] = error.data
    return {"jsonrpc": "2.0", "id": id, "error": fields}
