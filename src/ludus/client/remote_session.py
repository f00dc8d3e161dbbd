"""A session on a server, of Ludus or of OpenEnv."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from ludus.client.session import Session, StepResult, parse_result
from ludus.client.websocket import (
    WebSocketClient,
    http_url,
    is_local,
    status_error,
    unreachable_error,
)
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.errors import ConnectFailed, WireError
from ludus.protocol.action_tools import calls_by_name, tool_from_action
from ludus.protocol.frames import action_payload

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

    async def reset(self, **task: Any) -> StepResult[dict[str, Any]]:
        payload = await self._socket.request({"type": "reset", "data": task})
        return self._record_reset(parse_result(payload))

    async def step(self, action: Mapping[str, Any] | BaseModel) -> StepResult[dict[str, Any]]:
        payload = await self._socket.request({"type": "step", "data": action_payload(action)})
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


async def fetch_json_object(socket: WebSocketClient, path: str) -> dict[str, Any]:
    """Fetch a JSON object from an HTTP route of the server."""
    reply = await fetch_json_value(socket, path)
    if not isinstance(reply, dict):
        url = http_url(socket.base_url, path)
        raise ConnectFailed(f"{url} did not return a JSON object.")
    return reply


async def fetch_json_value(socket: WebSocketClient, path: str) -> Any:
    """Fetch JSON from an HTTP route of the server."""
    import aiohttp

    url = http_url(socket.base_url, path)
    try:
        async with (
            aiohttp.ClientSession(
                headers=socket.headers,
                trust_env=not is_local(url),
                timeout=aiohttp.ClientTimeout(total=10.0),
            ) as client,
            client.get(url, allow_redirects=False) as reply,
        ):
            if reply.status != 200:
                raise status_error(url, reply.status)
            return await reply.json(content_type=None)
    except aiohttp.ClientConnectorError as error:
        raise unreachable_error(socket.base_url, error.os_error) from None
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        why = str(error) or "no answer in 10 s"
        raise ConnectFailed(f"{url} cannot be read: {why}") from None
