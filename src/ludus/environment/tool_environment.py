"""`ToolEnvironment`: an environment whose actions are calls of `@tool` methods.

With one tool, its arguments are the action. With several, a `call_tool` action names one of them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ludus.data.messages import is_content_blocks
from ludus.data.tool_schema import JsonObject
from ludus.environment.base import Environment
from ludus.environment.rubric import Score
from ludus.environment.tools import InvalidArguments, Tool, collect_tools
from ludus.errors import InvalidAction, ToolError, did_you_mean
from ludus.protocol.observation_text import render_observation
from ludus.protocol.types import (
    Action,
    CallToolAction,
    CallToolObservation,
    Observation,
    State,
    StepResult,
    TextObservation,
    ToolFault,
)

ToolFaultKind = Literal["execution_error", "invalid_args", "tool_not_found"]


@dataclass(slots=True)
class _CallOutcome:
    """Reward and end of the episode, as set by the tool that is running."""

    reward: float | None = None
    done: bool = False
    parts: dict[str, float] = field(default_factory=dict)


class ToolEnvironment(Environment[Action, Observation, State]):
    """An environment whose actions are calls of its `@tool` methods.

    `reset` returns the first observation: text, content blocks, or an Observation. A tool returns
    the next one; it calls `award` to give a reward and `finish` to end the episode, and raises
    `ToolError` to report a mistake to the model.
    """

    action_type: ClassVar[type[Action] | None] = None
    """An action other than a tool call, for classes that override `step`."""
    _outcome: _CallOutcome | None = None

    def award(self, reward: float | Score, **parts: float) -> None:
        """Add to the reward of the running call; `parts` are the named parts of the reward.

        The score of a rubric has its parts already, and may have no reward: then none is added.
        """
        outcome = self._outcome = self._outcome or _CallOutcome()
        score = reward if isinstance(reward, Score) else Score(reward)
        if score.reward is not None:
            outcome.reward = (outcome.reward or 0.0) + score.reward
        outcome.parts.update({**score.parts, **parts})

    def finish(self, reward: float | Score, text: str = "", **parts: float) -> str:
        """End the episode with a reward; returns the text, for the tool to return."""
        self.award(reward, **parts)
        assert self._outcome is not None
        self._outcome.done = True
        return text

    def step(self, action: Action) -> Observation | Awaitable[Observation]:
        """Call the tool that the action names, or the default tool with its arguments."""
        tools = collect_tools(type(self))
        self._outcome = None
        if isinstance(action, CallToolAction):
            tool = tools.get(action.tool_name)
            if tool is None:
                hint = did_you_mean(action.tool_name, tools, f"There are: {', '.join(tools)}.")
                message = f"No tool is named {action.tool_name!r}. {hint}"
                return fault_result(action.tool_name, "tool_not_found", message)
            try:
                arguments = tool.bind(action.arguments)
            except InvalidArguments as error:
                return fault_result(action.tool_name, "invalid_args", str(error))
            return self._call(tool, arguments, named=True)
        default = next((tool for tool in tools.values() if tool.default), None)
        if default is None:
            raise InvalidAction('Name a tool: {"type": "call_tool", "tool_name": …}.')
        fields = action.model_fields_set - {"metadata"}
        return self._call(default, {name: getattr(action, name) for name in fields}, named=False)

    def _call(
        self, tool: Tool, arguments: JsonObject, *, named: bool
    ) -> Observation | Awaitable[Observation]:
        name = tool.spec.name
        try:
            value = getattr(self, name)(**arguments)
        except ToolError as error:
            return self._fault_observation(name, error, named)
        if not inspect.isawaitable(value):
            return self._result_observation(name, value, named)

        async def call() -> Observation:
            try:
                return self._result_observation(name, await value, named)
            except ToolError as error:
                return self._fault_observation(name, error, named)

        return call()

    def _fault_observation(self, name: str, error: ToolError, named: bool) -> Observation:
        result = fault_result(name, "execution_error", str(error))
        if named or result.error is None:
            return self._apply_outcome(result)
        metadata = {"error": result.error.model_dump(mode="json")}
        return self._apply_outcome(TextObservation(text=f"Error: {error}", metadata=metadata))

    def _result_observation(self, name: str, value: object, named: bool) -> Observation:
        if not named and isinstance(value, str):
            return TextObservation(text=value, **self._outcome_fields())
        if not named:
            return self._apply_outcome(as_observation(value))
        if isinstance(value, Observation):
            return self._apply_outcome(as_tool_result(name, value))
        result = _to_wire_result(value)
        return CallToolObservation(tool_name=name, result=result, **self._outcome_fields())

    def _outcome_fields(self) -> JsonObject:
        """The outcome as fields of a new observation: one update is faster than assignments."""
        if (outcome := self._outcome) is None:
            return {}
        metadata = {"rewards": dict(outcome.parts)} if outcome.parts else {}
        return {"reward": outcome.reward, "done": outcome.done, "metadata": metadata}

    def _apply_outcome(self, observation: Observation) -> Observation:
        if (outcome := self._outcome) is not None:
            observation.done = observation.done or outcome.done
            if outcome.reward is not None:
                observation.reward = outcome.reward
            if outcome.parts:
                observation.metadata = {**observation.metadata, "rewards": dict(outcome.parts)}
        return observation


def as_observation(value: Any) -> Observation:
    """Convert the return value of a tool, `reset` or `step` to an observation."""
    if isinstance(value, StepResult) or type(value).__name__ == "StepResult":
        # OpenEnv's, too: its environments may return what its clients do.
        inner = as_observation(value.observation)
        inner.reward, inner.done = value.reward, value.done
        inner.metadata = {**inner.metadata, **(value.metadata or {})}
        return inner
    if hasattr(value, "model_dump") and hasattr(value, "done"):
        observation: Observation = value  # Or OpenEnv's, which has the same fields.
        return observation
    if isinstance(value, str) or is_content_blocks(value):
        return TextObservation.from_content(value)
    return TextObservation(text=json.dumps(value, ensure_ascii=False))


def as_tool_result(name: str, observation: Observation) -> CallToolObservation:
    """Convert an observation to the result of the tool that was called."""
    fields = observation.model_dump(mode="json", exclude={"reward", "done"})
    return CallToolObservation(
        tool_name=name,
        result=_to_wire_result(render_observation(fields)),
        reward=observation.reward,
        done=observation.done,
        metadata=observation.metadata,
    )


def fault_result(name: str, kind: ToolFaultKind, message: str) -> CallToolObservation:
    """The result of a call that failed."""
    return CallToolObservation(tool_name=name, error=ToolFault(error_type=kind, message=message))


def _to_wire_result(value: Any) -> Any:
    if is_content_blocks(value):
        return {"content": [block.model_dump(mode="json", by_alias=True) for block in value]}
    return value
