"""A session on a server, of Ludus or of OpenEnv."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from ludus.client.server_http import fetch_json_object
from ludus.client.session import Session
from ludus.client.websocket import WebSocketClient
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.errors import EPISODE_CONTINUES, ExecutionFailed, WireError
from ludus.protocol.action_tools import calls_by_name, tool_from_action
from ludus.protocol.frames import action_payload, parse_result
from ludus.protocol.types import StepResult

_UNSUPPORTED_FRAME_CODES = ("UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR")
"""Error codes with which servers without MCP reply to an `mcp` frame."""


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
        socket: WebSocketClient,
        describe: Callable[[WebSocketClient], Awaitable[ServerDescription]] | None = None,
    ) -> None:
        self._socket = socket
        self._describe = describe or describe_server

    async def open(self) -> None:
        await self._socket.open()
        try:
            described = await self._describe(self._socket)
        except BaseException:
            await self._socket.close()
            raise
        self.tools, self.calls_by_name = described.tools, described.calls_by_name

    async def reset(self, /, **task: Any) -> StepResult[dict[str, Any]]:
        payload = await self._socket.request({"type": "reset", "data": task})
        return self._record_reset(parse_result(payload))

    async def step(self, action: Mapping[str, Any] | BaseModel) -> StepResult[dict[str, Any]]:
        try:
            payload = await self._socket.request({"type": "step", "data": action_payload(action)})
        except ExecutionFailed as error:
            # OpenEnv's environments raise for an illegal action, and the session goes on. A Ludus
            # server says whether it does.
            error.details.setdefault(EPISODE_CONTINUES, not self._socket.is_ludus_server)
            raise
        return self._record_step(parse_result(payload))

    async def state(self) -> dict[str, Any]:
        return await self._socket.request({"type": "state"})

    async def close(self) -> None:
        await self._socket.close()


async def describe_server(socket: WebSocketClient) -> ServerDescription:
    """Fetch the tools of a server; where it has none, derive one from its action schema."""
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
