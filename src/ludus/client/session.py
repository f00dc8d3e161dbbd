"""The session interface: one environment, one episode at a time, wherever it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel

from ludus.data.content import Content
from ludus.data.tool_arguments import coerce_arguments
from ludus.data.tool_schema import ToolSpec
from ludus.errors import InvalidAction, did_you_mean
from ludus.protocol.observation_text import conversation_text, render_observation

ObsT = TypeVar("ObsT")

_MALFORMED_CALL_TYPES = ("tool_not_found", "invalid_args")


@dataclass(frozen=True, slots=True)
class StepResult(Generic[ObsT]):
    """The result of a reset or a step."""

    observation: ObsT
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
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


def parse_result(payload: Mapping[str, Any]) -> StepResult[dict[str, Any]]:
    """Parse the payload of a result; versions of OpenEnv have metadata in different places."""
    observation = dict(payload.get("observation") or {})
    metadata = payload.get("metadata") or observation.get("metadata") or {}
    return StepResult(
        observation=observation,
        reward=payload.get("reward"),
        done=bool(payload.get("done", False)),
        metadata=dict(metadata),
    )


class Session(ABC):
    """One environment, one episode at a time. Use it as an async context manager."""

    tools: tuple[ToolSpec, ...] = ()
    """The tools that a model may call; available once the session is open."""
    calls_by_name: bool = False
    _transcript = ""
    """The conversation so far, while every observation has repeated and continued it."""

    @abstractmethod
    async def open(self) -> None:
        """Create the environment. Called when the context is entered."""

    @abstractmethod
    async def reset(self, **task: Any) -> StepResult[dict[str, Any]]:
        """Start an episode."""

    @abstractmethod
    async def step(self, action: Mapping[str, Any] | BaseModel) -> StepResult[dict[str, Any]]:
        """Take one action; raises `InvalidAction` where it does not validate."""

    @abstractmethod
    async def state(self) -> dict[str, Any]:
        """The state of the environment."""

    @abstractmethod
    async def close(self) -> None:
        """Close the environment. May be called twice."""

    async def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None
    ) -> StepResult[dict[str, Any]]:
        """Call a tool on behalf of a model; its mistakes are returned as `error`, not raised."""
        known = {spec.name: spec for spec in self.tools}
        if tool not in known:
            hint = did_you_mean(tool, known, f"There are: {', '.join(known)}.")
            return StepResult({}, error=f"No tool is named {tool!r}. {hint}", malformed=True)
        action: Mapping[str, Any] = coerce_arguments(arguments or {}, known[tool].input_schema)
        if self.calls_by_name:
            action = {"type": "call_tool", "tool_name": tool, "arguments": action}
        try:
            result = await self.step(action)
        except InvalidAction as error:
            return StepResult({}, error=str(error), malformed=True)
        fault = result.observation.get("error") or result.metadata.get("error")
        if isinstance(fault, Mapping) and "message" in fault:
            malformed = fault.get("error_type") in _MALFORMED_CALL_TYPES
            return replace(result, error=str(fault["message"]), malformed=malformed)
        return result

    def _record_reset(self, result: StepResult[dict[str, Any]]) -> StepResult[dict[str, Any]]:
        """To be called by subclasses with the result of every reset."""
        self._transcript = conversation_text(result.observation)
        return result

    def _record_step(self, result: StepResult[dict[str, Any]]) -> StepResult[dict[str, Any]]:
        """To be called by subclasses with the result of every step.

        Where a server sends the whole conversation with every step, marks the part that was shown
        before. Once a transcript does not continue the previous one, nothing is marked any more in
        this episode: a message may be repeated by chance.
        """
        previous, current = self._transcript, conversation_text(result.observation)
        if not previous or not current.startswith(previous):
            self._transcript = ""
            return result
        self._transcript = current
        return replace(result, shown_before=previous)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
