"""Frames of the WebSocket: one JSON text in, one out.

Parsing never raises anything but `FrameRefused`, whatever the bytes. The envelope forbids extra
keys in both directions, so nothing of Ludus's own is ever added to a frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from ludus.errors import WireError
from ludus.protocol.types import ErrorCode, Observation

SESSION_HEADER = "ludus-session"
"""On the reply to an upgrade: the session's id. A client that comes back names it in the query."""
REQUESTS_HEADER = "ludus-requests"
"""On the reply to a resuming upgrade: how many requests of this session have arrived."""
RESUME_HEADER = "ludus-resume"
"""On an upgrade: this client can come back, so keep its session for a while if the line drops."""


class _Frame(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ResetFrame(_Frame):
    type: Literal["reset"] = "reset"
    data: dict[str, Any] = Field(default_factory=dict)


class StepFrame(_Frame):
    type: Literal["step"] = "step"
    data: dict[str, Any]


class StateFrame(_Frame):
    type: Literal["state"] = "state"


class CloseFrame(_Frame):
    type: Literal["close"] = "close"


class McpFrame(_Frame):
    type: Literal["mcp"] = "mcp"
    data: dict[str, Any]


Frame = ResetFrame | StepFrame | StateFrame | CloseFrame | McpFrame
_frames: TypeAdapter[Frame] = TypeAdapter(Annotated[Frame, Field(discriminator="type")])

_parse = _frames.validator.validate_json
_CODES = {
    "json_invalid": ErrorCode.INVALID_JSON,
    "union_tag_invalid": ErrorCode.UNKNOWN_TYPE,
    "union_tag_not_found": ErrorCode.UNKNOWN_TYPE,
}


_TOP_LEVEL_FIELDS = {"reward", "done"}


class InvalidFrame(WireError):
    """A frame that is not one; the socket stays open."""


def parse_frame(text: str | bytes) -> Frame:
    try:
        frame: Frame = _parse(text)
        return frame
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        code = _CODES.get(first["type"], ErrorCode.VALIDATION_ERROR)
        details = {"errors": readable_errors(error)} if code is ErrorCode.VALIDATION_ERROR else {}
        raise InvalidFrame(first["msg"], code, details) from None


def readable_errors(error: ValidationError) -> list[dict[str, Any]]:
    """pydantic's list, without links and without echoing the input back."""
    return [
        dict(item)
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    ]


def result_payload(observation: Observation) -> dict[str, Any]:
    """`reward` and `done` stand beside the observation; metadata in both places."""
    payload: dict[str, Any] = {
        "observation": observation.model_dump(mode="json", exclude=_TOP_LEVEL_FIELDS),
        "reward": observation.reward,
        "done": observation.done,
    }
    if observation.metadata:
        payload["metadata"] = payload["observation"]["metadata"]
    return payload


def action_payload(action: Mapping[str, Any] | BaseModel) -> dict[str, Any]:
    """An action as the wire has it."""
    if isinstance(action, BaseModel):
        return action.model_dump(mode="json", exclude_defaults=True)
    return dict(action)


def encode_frame(kind: str, data: Mapping[str, Any]) -> bytes:
    return to_json({"type": kind, "data": data}, inf_nan_mode="null")


def encode_observation(observation: Observation) -> bytes:
    """The frame of `result_payload`, without the detour over dictionaries."""
    seen = observation.__pydantic_serializer__.to_json(observation, exclude=_TOP_LEVEL_FIELDS)
    frame = b'{"type":"observation","data":{"observation":%b,"reward":%b,"done":%b' % (
        seen,
        b"null" if observation.reward is None else to_json(observation.reward),
        b"true" if observation.done else b"false",
    )
    if observation.metadata:
        frame += b',"metadata":' + to_json(observation.metadata, inf_nan_mode="null")
    return frame + b"}}"


def encode_error(error: WireError) -> bytes:
    return encode_frame("error", {"message": str(error), "code": error.code, **error.details})
