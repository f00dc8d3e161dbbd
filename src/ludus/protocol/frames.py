"""The frames of OpenEnv's WebSocket protocol, in JSON.

Parsing raises only `InvalidFrame`, whatever the bytes. The protocol forbids extra keys in both
directions, so that Ludus sends its own data in headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from ludus.data.tool_schema import JsonObject
from ludus.errors import WireError
from ludus.protocol.types import ErrorCode, Observation, StepResult

SESSION_HEADER = "ludus-session"
"""Response header of an upgrade: the session's id, which a client sends to resume it."""
REQUESTS_HEADER = "ludus-requests"
"""Response header of a resuming upgrade: the number of requests that the session has received."""
RESUME_HEADER = "ludus-resume"
"""Request header of an upgrade: the client can resume, so that its session is kept for a while."""


class _Frame(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ResetFrame(_Frame):
    type: Literal["reset"] = "reset"
    data: JsonObject = Field(default_factory=dict)


class StepFrame(_Frame):
    type: Literal["step"] = "step"
    data: JsonObject


class StateFrame(_Frame):
    type: Literal["state"] = "state"


class CloseFrame(_Frame):
    type: Literal["close"] = "close"


class McpFrame(_Frame):
    type: Literal["mcp"] = "mcp"
    data: JsonObject


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
    """A message is not a valid frame; the connection stays open."""


def parse_frame(text: str | bytes) -> Frame:
    try:
        frame: Frame = _parse(text)
        return frame
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        code = _CODES.get(first["type"], ErrorCode.VALIDATION_ERROR)
        details = (
            {"errors": error_frame_details(error)} if code is ErrorCode.VALIDATION_ERROR else {}
        )
        raise InvalidFrame(first["msg"], code, details) from None


def error_frame_details(error: ValidationError) -> list[JsonObject]:
    """The errors of a pydantic `ValidationError` as in an error frame: without the input."""
    return [
        dict(item)
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    ]


def result_payload(observation: Observation) -> JsonObject:
    """Convert an observation to OpenEnv's result: `reward` and `done` beside it, metadata twice."""
    payload: JsonObject = {
        "observation": observation.model_dump(mode="json", exclude=_TOP_LEVEL_FIELDS),
        "reward": observation.reward,
        "done": observation.done,
    }
    if observation.metadata:
        payload["metadata"] = payload["observation"]["metadata"]
    return payload


def to_result(observation: Observation) -> StepResult[JsonObject]:
    """Convert an observation as a client would parse it from `result_payload`."""
    fields = observation.model_dump(mode="json", exclude=_TOP_LEVEL_FIELDS)
    metadata = dict(fields.get("metadata") or {})
    return StepResult(fields, observation.reward, observation.done, metadata=metadata)


def parse_result(payload: JsonObject) -> StepResult[JsonObject]:
    """Parse a result; versions of OpenEnv put the metadata in different places."""
    observation = dict(payload.get("observation") or {})
    metadata = payload.get("metadata") or observation.get("metadata") or {}
    return StepResult(
        observation=observation,
        reward=payload.get("reward"),
        done=bool(payload.get("done", False)),
        metadata=dict(metadata),
    )


def action_payload(action: Mapping[str, object] | BaseModel) -> JsonObject:
    """Convert an action to the payload of a frame."""
    if isinstance(action, BaseModel):
        return action.model_dump(mode="json", exclude_defaults=True)
    return dict(action)


def encode_frame(kind: str, data: JsonObject) -> bytes:
    return to_json({"type": kind, "data": data}, inf_nan_mode="null")


def encode_observation(observation: Observation) -> bytes:
    """Encode the frame of `result_payload` without intermediate dictionaries, for speed."""
    fields = observation.__pydantic_serializer__.to_json(observation, exclude=_TOP_LEVEL_FIELDS)
    frame = b'{"type":"observation","data":{"observation":%b,"reward":%b,"done":%b' % (
        fields,
        b"null" if observation.reward is None else to_json(observation.reward),
        b"true" if observation.done else b"false",
    )
    if observation.metadata:
        frame += b',"metadata":' + to_json(observation.metadata, inf_nan_mode="null")
    return frame + b"}}"


def encode_error(error: WireError) -> bytes:
    return encode_frame("error", {"message": str(error), "code": error.code, **error.details})
