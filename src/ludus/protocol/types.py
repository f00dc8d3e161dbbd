"""The types of OpenEnv's protocol, and tools that are derived from an action schema."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ludus.data.messages import Block, Content, Image
from ludus.data.tool_schema import JsonObject, ToolSpec, strip_titles
from ludus.protocol.observation_text import render_observation

ObsT = TypeVar("ObsT")


class Action(BaseModel):
    """An action of an agent. Subclass it with your own fields."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    metadata: JsonObject = Field(default_factory=dict)


class Observation(BaseModel):
    """An observation after a reset or a step. Subclass it with your own fields."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    done: bool = False
    reward: bool | int | float | None = None
    """The reward of the last action; None if it is unscored."""
    metadata: JsonObject = Field(default_factory=dict)


class State(BaseModel):
    """The state of an environment."""

    model_config = ConfigDict(extra="allow", validate_assignment=True)

    episode_id: str | None = None
    step_count: int = Field(default=0, ge=0)


class TextObservation(Observation):
    """An observation that is text, or blocks of text and images."""

    text: str = ""
    content: list[Block] = Field(default_factory=list)
    """Set if there are images; `text` then holds the text of the blocks."""

    @classmethod
    def from_content(cls, content: Content) -> TextObservation:
        if isinstance(content, str):
            return cls(text=content)
        text = "\n".join(block.text for block in content if not isinstance(block, Image))
        return cls(text=text, content=list(content))


_DIGEST = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class StepResult(Generic[ObsT]):
    """The result of a reset or a step."""

    observation: ObsT
    reward: float | None = None
    done: bool = False
    metadata: JsonObject = field(default_factory=dict)
    error: str | None = None
    """The model's mistake, such as an unknown tool or a bad argument. The episode continues."""
    malformed: bool = False
    """Whether the mistake was a malformed call, not one that the tool itself rejected."""
    shown_before: str = field(default="", repr=False)
    """The part of a cumulative transcript that earlier results have shown."""

    @property
    def content(self) -> Content:
        """What the model is shown of the result."""
        if self.error is not None:
            return f"Error: {self.error}"
        fields: Any = self.observation
        if isinstance(fields, BaseModel):
            fields = fields.model_dump(mode="json")
        return render_observation(fields, shown_before=self.shown_before)

    @property
    def rewards(self) -> dict[str, float]:
        """The named parts of the reward."""
        return dict(self.metadata.get("rewards", {}))

    @property
    def progress(self) -> float | None:
        """What the environment's `progress()` returned; None without it.

        Another environment's metadata may have something else under this name.
        """
        value = self.metadata.get("progress")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            return None
        return float(value)

    @property
    def task_key(self) -> str | None:
        """The digest of the environment's `task_key()` after a reset; None if it has none."""
        value = self.metadata.get("task_key")
        return value if isinstance(value, str) and _DIGEST.fullmatch(value) else None

    @property
    def max_turns(self) -> int | None:
        """Number of turns that the environment's rules allow, as the reset reports it."""
        value = self.metadata.get("max_turns")
        return value if type(value) is int and value > 0 else None


class ListToolsAction(Action):
    """Request the list of tools. Needs no reset."""

    type: Literal["list_tools"] = "list_tools"


class CallToolAction(Action):
    """Call one of several tools."""

    type: Literal["call_tool"] = "call_tool"
    tool_name: str
    arguments: JsonObject = Field(default_factory=dict)


class ListToolsObservation(Observation):
    """The list of tools."""

    tools: list[ToolSpec]


class ToolFault(BaseModel):
    """Why a tool call failed; the message is for the model."""

    error_type: Literal[
        "execution_error", "invalid_args", "transport_error", "tool_not_found", "timeout"
    ]
    message: str


class CallToolObservation(Observation):
    """The result of a tool call."""

    tool_name: str
    result: Any = None
    error: ToolFault | None = None


class EnvironmentMetadata(BaseModel):
    """The response of GET /metadata."""

    name: str
    description: str
    readme_content: str | None = None
    version: str | None = None
    author: str | None = None
    documentation_url: str | None = None


class ErrorCode(StrEnum):
    """The codes of error frames; the last three close the connection."""

    INVALID_JSON = "INVALID_JSON"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    CAPACITY_REACHED = "CAPACITY_REACHED"
    FACTORY_ERROR = "FACTORY_ERROR"
    SESSION_ERROR = "SESSION_ERROR"


def takes_tool_calls(action_schema: Mapping[str, Any]) -> bool:
    """Whether actions of this schema are `call_tool` actions."""
    return {"tool_name", "arguments"} <= set(action_schema.get("properties", {}))


def tool_from_action(action_schema: Mapping[str, Any]) -> ToolSpec:
    """Derive a tool whose arguments are the fields of the action.

    It has the name of the only field (`answer(answer)`); with several fields it is named after the
    action: `OpenSpielAction` becomes `open_spiel`.
    """
    properties = {
        name: strip_titles(schema)
        for name, schema in action_schema.get("properties", {}).items()
        if name != "metadata"
    }
    parameters: JsonObject = {"type": "object", "properties": properties}
    required = [name for name in action_schema.get("required", ()) if name in properties]
    if required:
        parameters["required"] = required
    if "$defs" in action_schema:
        parameters["$defs"] = strip_titles(action_schema["$defs"])
    parameters["additionalProperties"] = action_schema.get("additionalProperties") is True
    if len(properties) == 1:
        name = next(iter(properties))
    else:
        stem = str(action_schema.get("title", "act")).removesuffix("Action") or "act"
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
    return ToolSpec(
        name=name,
        description=str(action_schema.get("description", "")),
        input_schema=parameters,
    )


def calls_by_name(action_schema: Mapping[str, Any], tools: Sequence[ToolSpec]) -> bool:
    """Whether a call is sent as a `call_tool` action; otherwise its arguments are the action."""
    return takes_tool_calls(action_schema) or len(tools) > 1
