"""Sessions: one environment, one episode at a time, in this process or on a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from pydantic import BaseModel

from ludus.client.server_http import fetch_json_object
from ludus.client.websocket import WebSocketClient
from ludus.data.tool_schema import JsonObject, ToolSpec, coerce_arguments
from ludus.environment.faults import raise_with_location
from ludus.environment.runner import EnvironmentRunner
from ludus.environment.spec import EnvSpec
from ludus.errors import (
    EPISODE_CONTINUES,
    ExecutionFailed,
    InvalidAction,
    SessionLost,
    StepTimeout,
    WireError,
    did_you_mean,
)
from ludus.protocol.frames import action_payload, parse_result, to_result
from ludus.protocol.observation_text import conversation_text
from ludus.protocol.types import Observation, StepResult, calls_by_name, tool_from_action

_MALFORMED_CALL_TYPES = ("tool_not_found", "invalid_args")
_CLOSED_MESSAGE = "The session is closed; open another."
_UNSUPPORTED_FRAME_CODES = ("UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR")
"""Error codes with which servers without MCP reply to an `mcp` frame."""


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
    async def reset(self, /, **task: Any) -> StepResult[JsonObject]:
        """Start an episode."""

    @abstractmethod
    async def step(self, action: Mapping[str, object] | BaseModel) -> StepResult[JsonObject]:
        """Take one action; raises `InvalidAction` if it does not validate."""

    @abstractmethod
    async def state(self) -> JsonObject:
        """The state of the environment."""

    @abstractmethod
    async def close(self) -> None:
        """Close the environment. May be called twice."""

    async def call(
        self, tool: str, arguments: Mapping[str, object] | None = None
    ) -> StepResult[JsonObject]:
        """Call a tool on behalf of a model; its mistakes are returned as `error`, not raised."""
        known = {spec.name: spec for spec in self.tools}
        if tool not in known:
            hint = did_you_mean(tool, known, f"There are: {', '.join(known)}.")
            return StepResult({}, error=f"No tool is named {tool!r}. {hint}", malformed=True)
        action: Mapping[str, object] = coerce_arguments(arguments or {}, known[tool].input_schema)
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

    def _record_reset(self, result: StepResult[JsonObject]) -> StepResult[JsonObject]:
        """To be called by subclasses with the result of every reset."""
        self._transcript = conversation_text(result.observation)
        return result

    def _record_step(self, result: StepResult[JsonObject]) -> StepResult[JsonObject]:
        """To be called by subclasses with the result of every step.

        If a server sends the whole conversation with every step, marks the part that was shown
        before. Once a transcript does not continue the previous one, nothing is marked any more in
        this episode: a message may be repeated by chance.
        """
        if not (previous := self._transcript):
            return result
        current = conversation_text(result.observation)
        if not current.startswith(previous):
            self._transcript = ""
            return result
        self._transcript = current
        return replace(result, shown_before=previous)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class LocalSession(Session):
    """A session on an environment in this process."""

    runner: EnvironmentRunner

    def __init__(self, env_spec: EnvSpec, *, step_timeout: float | None = None) -> None:
        self.runner = EnvironmentRunner(env_spec, step_timeout=step_timeout)
        self._open = False

    async def open(self) -> None:
        with raise_with_location():
            await self.runner.start()
            self.tools = await self.runner.tools()
        self.calls_by_name = calls_by_name(self.runner.env_spec.action_schema, self.tools)
        self._open = True

    async def reset(self, /, **task: Any) -> StepResult[JsonObject]:
        return self._record_reset(await self._request(self.runner.reset(task)))

    async def step(self, action: Mapping[str, object] | BaseModel) -> StepResult[JsonObject]:
        return self._record_step(await self._request(self.runner.step(action_payload(action))))

    async def state(self) -> JsonObject:
        if not self._open:
            raise SessionLost(_CLOSED_MESSAGE)
        with raise_with_location():
            return await self.runner.state()

    async def close(self) -> None:
        if self.runner.environment is not None:
            self._open = False
            await self.runner.close()

    async def _request(self, seen: Coroutine[object, None, Observation]) -> StepResult[JsonObject]:
        if not self._open:
            seen.close()
            raise SessionLost(_CLOSED_MESSAGE)
        try:
            with raise_with_location():
                return to_result(await seen)
        except StepTimeout:
            self._open = False
            raise


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """The tools and the action schema of a server, which are the same for all of its sessions."""

    action_schema: JsonObject
    tools: tuple[ToolSpec, ...]
    calls_by_name: bool


class RemoteSession(Session):
    """A session on a server."""

    def __init__(
        self,
        open_socket: Callable[[], Awaitable[WebSocketClient]],
        describe: Callable[[WebSocketClient], Awaitable[ServerDescription]],
    ) -> None:
        self._open_socket, self._describe = open_socket, describe
        self._socket: WebSocketClient | None = None

    async def open(self) -> None:
        self._socket = await self._open_socket()
        try:
            described = await self._describe(self._socket)
        except BaseException:
            await self._socket.close()
            raise
        self.tools, self.calls_by_name = described.tools, described.calls_by_name

    async def reset(self, /, **task: Any) -> StepResult[JsonObject]:
        return self._record_reset(parse_result(await self._request("reset", task)))

    async def step(self, action: Mapping[str, object] | BaseModel) -> StepResult[JsonObject]:
        try:
            payload = await self._request("step", action_payload(action))
        except ExecutionFailed as error:
            # OpenEnv's environments raise for an illegal action, and the session goes on. A Ludus
            # server says whether it does.
            is_ludus = self._socket is not None and self._socket.is_ludus_server
            error.details.setdefault(EPISODE_CONTINUES, not is_ludus)
            raise
        return self._record_step(parse_result(payload))

    async def state(self) -> JsonObject:
        return await self._request("state")

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    async def _request(self, kind: str, data: JsonObject | None = None) -> JsonObject:
        if self._socket is None:
            raise SessionLost("The session is not open.")
        frame = {"type": kind} if data is None else {"type": kind, "data": data}
        return await self._socket.request(frame)


async def describe_server(socket: WebSocketClient) -> ServerDescription:
    """Fetch a server's tools; without any, one tool is derived from its action schema."""
    schema = await fetch_json_object(socket, "/schema")
    action_schema: JsonObject = schema.get("action", {})
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    try:
        answer = await socket.request({"type": "mcp", "data": listing})
    except WireError as error:
        if error.code not in _UNSUPPORTED_FRAME_CODES:
            raise
        answer = {}
    tools = tuple(
        ToolSpec.model_validate({key: value for key, value in tool.items() if value is not None})
        for tool in answer.get("result", {}).get("tools", ())
    )
    tools = tools or (tool_from_action(action_schema),)
    return ServerDescription(action_schema, tools, calls_by_name(action_schema, tools))
