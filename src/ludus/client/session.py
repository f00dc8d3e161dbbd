"""What an agent plays on. Where the environment runs is the business of the subclasses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel

from ludus.data.content import Content
from ludus.data.tool_schema import ToolSpec, coerce_arguments
from ludus.errors import InvalidAction, did_you_mean
from ludus.protocol.observation_text import conversation_text, render_observation

ObsT = TypeVar("ObsT")

_MALFORMED_CALL_TYPES = ("tool_not_found", "invalid_args")


@dataclass(frozen=True, slots=True)
class StepResult(Generic[ObsT]):
    """What a reset or a step gave."""

    observation: ObsT
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    """What the model did wrong, if it did: a bad argument, an unknown tool. The episode goes on."""
    malformed: bool = False
    """Whether that was a call that no tool could take, and not a bad move."""
    shown_before: str = field(default="", repr=False)
    """The part of a cumulative transcript that the episode has shown before."""

    @property
    def content(self) -> Content:
        """What the model is shown of it."""
        if self.error is not None:
            return f"Error: {self.error}"
        seen: Any = self.observation
        seen = seen.model_dump(mode="json") if isinstance(seen, BaseModel) else seen
        return render_observation(seen, shown_before=self.shown_before)

    @property
    def rewards(self) -> dict[str, float]:
        """The named parts of the reward."""
        return dict(self.metadata.get("rewards", {}))


def parse_result(payload: Mapping[str, Any]) -> StepResult[dict[str, Any]]:
    """Read the wire's result; every known version of OpenEnv puts metadata somewhere else."""
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
    """What a model may call here; known once the session is open."""
    calls_by_name: bool = False
    _transcript = ""
    """The conversation that the episode has shown, if each observation so far has continued it."""

    @abstractmethod
    async def open(self) -> None:
        """Get the environment. Entering the context does this."""

    @abstractmethod
    async def reset(self, **task: Any) -> StepResult[dict[str, Any]]:
        """Begin an episode."""

    @abstractmethod
    async def step(self, action: Mapping[str, Any] | BaseModel) -> StepResult[dict[str, Any]]:
        """Do one action as the wire has it; an action that does not validate is raised."""

    @abstractmethod
    async def state(self) -> dict[str, Any]:
        """What the environment tells about itself."""

    @abstractmethod
    async def close(self) -> None:
        """Give the environment back. May be called twice."""

    async def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None
    ) -> StepResult[dict[str, Any]]:
        """Call a tool as a model would; a mistake of the model's comes back as `error`."""
        known = {spec.name: spec for spec in self.tools}
        if tool not in known:
            hint = did_you_mean(tool, known, f"There are: {', '.join(known)}.")
            return StepResult({}, error=f"No tool is named {tool!r}. {hint}", malformed=True)
        given = coerce_arguments(arguments or {}, known[tool].input_schema)
        action: Mapping[str, Any] = given
        if self.calls_by_name:
            action = {"type": "call_tool", "tool_name": tool, "arguments": given}
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
        """Subclasses pass the result of every reset through here."""
        self._transcript = conversation_text(result.observation)
        return result

    def _record_step(self, result: StepResult[dict[str, Any]]) -> StepResult[dict[str, Any]]:
        """Subclasses pass the result of every step through here.

        A server that sends the whole conversation every time begins it with what it sent before.
        One that does not once is not trusted again: it may repeat a message by chance.
        """
        before, now = self._transcript, conversation_text(result.observation)
        if not before or not now.startswith(before):
            self._transcript = ""
            return result
        self._transcript = now
        return replace(result, shown_before=before)

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
