"""The session interface: one environment, one episode at a time, wherever it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from pydantic import BaseModel

from ludus.data.tool_schema import ToolSpec, coerce_arguments
from ludus.environment.runner import EnvironmentRunner
from ludus.errors import ExecutionFailed, InvalidAction, did_you_mean
from ludus.protocol.observation_text import conversation_text
from ludus.protocol.types import StepResult

_MALFORMED_CALL_TYPES = ("tool_not_found", "invalid_args")


class Session(ABC):
    """One environment, one episode at a time. Use it as an async context manager."""

    tools: tuple[ToolSpec, ...] = ()
    """The tools that a model may call; available once the session is open."""
    calls_by_name: bool = False
    runner: EnvironmentRunner | None = None
    """The runner of an environment in this process."""
    _transcript = ""
    """The conversation so far, while every observation has repeated and continued it."""

    @abstractmethod
    async def open(self) -> None:
        """Create the environment. Called when the context is entered."""

    @abstractmethod
    async def reset(self, /, **task: Any) -> StepResult[dict[str, Any]]:
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
        except (InvalidAction, ExecutionFailed) as error:
            if isinstance(error, ExecutionFailed) and not error.episode_continues:
                raise
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

    async def __aexit__(self, *error: object) -> None:
        await self.close()
