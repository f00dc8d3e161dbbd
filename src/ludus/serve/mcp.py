"""JSON-RPC on `/mcp`: MCP, for any MCP client, and OpenEnv's session methods.

MCP has no reset: `initialize` creates a session, starts an episode, and returns the first
observation as `instructions`. MCP clients get tool errors as results, OpenEnv's clients as JSON-RPC
errors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from enum import IntEnum
from typing import Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json
from starlette.types import Receive, Scope, Send

from ludus import __version__
from ludus.data.messages import Content, Text, content_text
from ludus.data.tool_schema import JsonObject
from ludus.errors import CapacityReached, FactoryFailed, SessionError, SessionLost
from ludus.protocol.frames import result_payload
from ludus.protocol.observation_text import render_observation, render_tool_result
from ludus.serve.sessions import ServedSession, ServedSessions
from ludus.serve.worker_proxy import WorkerProxy
from ludus.serve.ws_endpoint import AsgiWsConnection, Disconnected

MCP_SESSION_HEADER = "mcp-session-id"
PROTOCOL_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
_INVALID_PARAMS_FAULTS = ("tool_not_found", "invalid_args")


class RpcCode(IntEnum):
    """The error codes in use."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    SERVER_ERROR = -32000


class RpcRequest(BaseModel):
    """A request; without an id it is a notification, which has no response."""

    model_config = ConfigDict(extra="forbid")

    jsonrpc: Literal["2.0"]
    method: str
    params: JsonObject = Field(default_factory=dict)
    id: str | int | None = None


class RpcError(Exception):
    """An error response to a request."""

    def __init__(self, code: RpcCode, message: str, data: JsonObject | None = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data


def error_response(error: RpcError, id: str | int | None = None) -> JsonObject:
    fields: JsonObject = {"code": int(error.code), "message": str(error)}
    if error.data is not None:
        fields["data"] = error.data
    return {"jsonrpc": "2.0", "id": id, "error": fields}


Method = Callable[[RpcRequest, ServedSession | None], Awaitable[JsonObject]]


class McpEndpoint:
    """Handles JSON-RPC requests, with or without a session."""

    def __init__(self, sessions: ServedSessions) -> None:
        self._sessions = sessions
        self._methods: dict[str, Method] = {
            "initialize": self._initialize,
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "openenv/session/create": self._create,
            "openenv/session/close": self._close,
        }

    def add_routes(self, app: FastAPI, proxy: WorkerProxy) -> None:
        """Add MCP's streamable HTTP, without streams: the response is one JSON body."""

        @app.post("/mcp", response_model=None)
        async def post(request: Request) -> Response:
            """JSON-RPC 2.0: MCP, and OpenEnv's session methods."""
            body = await request.body()
            message: JsonObject = {}
            with suppress(ValueError):  # `handle` reports the error.
                parsed = from_json(body)
                message = parsed if isinstance(parsed, dict) else {}
            params, session_id = message.get("params"), request.headers.get(MCP_SESSION_HEADER)
            session_param = params.get("session_id") if isinstance(params, dict) else None
            owner_id = session_id or (session_param if isinstance(session_param, str) else None)
            if (owner := proxy.find_owner(owner_id)) is not None:
                return await proxy.forward_http(owner, request, body)
            try:
                if message.get("method") != "initialize":
                    session = self._sessions.get(session_id) if session_id else None
                else:
                    session = await self._sessions.create(persistent=True)
            except SessionError as error:
                status = 404 if isinstance(error, SessionLost) else 200
                rpc_error = RpcError(RpcCode.SERVER_ERROR, str(error))
                return JSONResponse(error_response(rpc_error, message.get("id")), status)
            answer = await self.handle(body, session)
            if answer is None:
                return Response(status_code=202)
            headers = {MCP_SESSION_HEADER: session.id} if session is not None else None
            if session is not None and message.get("method") == "initialize" and "error" in answer:
                await self._sessions.destroy(session)
                headers = None
            content = to_json(answer, inf_nan_mode="null")
            return Response(content, media_type="application/json", headers=headers)

        @app.delete("/mcp", response_model=None)
        async def delete(request: Request) -> Response:
            """End an MCP session."""
            id = request.headers.get(MCP_SESSION_HEADER, "")
            if (owner := proxy.find_owner(id)) is not None:
                return await proxy.forward_http(owner, request, b"")
            try:
                await self._sessions.destroy(self._sessions.get(id))
            except SessionLost as error:
                return JSONResponse({"detail": str(error)}, 404)
            return Response(status_code=204)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The WebSocket `/mcp`, as an ASGI application: one session per connection."""
        connection = AsgiWsConnection(scope, receive, send)
        await connection.accept({})
        session = None
        # A client that disconnects is no error.
        with suppress(Disconnected):
            try:
                session = await self._sessions.create()
                while True:
                    answer = await self.handle(await connection.receive(), session)
                    if answer is not None:
                        await connection.send(to_json(answer, inf_nan_mode="null"))
            except SessionError as error:
                details = getattr(error, "details", None)
                rpc_error = RpcError(RpcCode.SERVER_ERROR, str(error), details)
                await connection.send(to_json(error_response(rpc_error)))
                await connection.close()
            finally:
                if session is not None:
                    await self._sessions.destroy(session)

    async def handle(
        self, body: str | bytes | JsonObject, session: ServedSession | None
    ) -> JsonObject | None:
        """The response to one request; None for a notification."""
        try:
            if isinstance(body, str | bytes):
                request = RpcRequest.model_validate_json(body)
            else:
                request = RpcRequest.model_validate(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            if first["type"] == "json_invalid":
                return error_response(RpcError(RpcCode.PARSE_ERROR, first["msg"]))
            message = f"Invalid request: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            return error_response(RpcError(RpcCode.INVALID_REQUEST, message))
        id = request.id
        try:
            if request.method.startswith("notifications/"):
                return None
            if request.method == "ping":
                return {"jsonrpc": "2.0", "id": id, "result": {}}
            if request.method not in self._methods:
                raise RpcError(RpcCode.METHOD_NOT_FOUND, f"Method not found: {request.method[:80]}")
            result = await self._methods[request.method](request, session)
            return {"jsonrpc": "2.0", "id": id, "result": result}
        except RpcError as error:
            return error_response(error, id)
        except (CapacityReached, FactoryFailed) as error:
            rpc_error = RpcError(RpcCode.SERVER_ERROR, str(error), error.details)
            return error_response(rpc_error, id)
        except SessionLost as error:
            return error_response(RpcError(RpcCode.INVALID_PARAMS, str(error)), id)
        except SessionError as error:
            return error_response(RpcError(RpcCode.INTERNAL_ERROR, str(error)), id)

    async def _initialize(self, request: RpcRequest, session: ServedSession | None) -> JsonObject:
        """Start an episode, with the task arguments under `_meta.task`."""
        version = request.params.get("protocolVersion")
        if session is None:
            raise RpcError(RpcCode.INVALID_REQUEST, "initialize needs a separate connection.")
        session.speaks_mcp = True
        meta = request.params.get("_meta")
        task = meta.get("task") if isinstance(meta, Mapping) else None
        observation = await session.reset(dict(task) if isinstance(task, Mapping) else {})
        text = content_text(render_observation(result_payload(observation)["observation"]))
        env_spec = self._sessions.env_spec
        return {
            "protocolVersion": version if version in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[1],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": env_spec.id, "version": __version__},
            "instructions": f"{env_spec.description}\n\n{text}",
        }

    async def _list_tools(self, request: RpcRequest, session: ServedSession | None) -> JsonObject:
        requested = self._requested_session(request, session)
        tools = self._sessions.env_spec.tools
        if tools is None:
            async with self._session_or_temporary(requested) as session:
                tools = await session.runner.tools()
        return {"tools": [tool.model_dump(mode="json", by_alias=True) for tool in tools]}

    async def _call_tool(self, request: RpcRequest, session: ServedSession | None) -> JsonObject:
        name, arguments = request.params.get("name"), request.params.get("arguments") or {}
        if not isinstance(name, str) or not name:
            raise RpcError(RpcCode.INVALID_PARAMS, "Missing 'name' in params.")
        if not isinstance(arguments, Mapping):
            raise RpcError(RpcCode.INVALID_PARAMS, "'arguments' must be an object.")
        requested = self._requested_session(request, session)
        async with self._session_or_temporary(requested) as session:
            if session.runner.episode_id is None and session.runner.env_spec.native:
                await session.reset({})
            action = {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}
            payload = result_payload(await session.step(action))
        observation = payload["observation"]
        fault = observation.get("error")
        if fault and not session.speaks_mcp:
            is_params = fault["error_type"] in _INVALID_PARAMS_FAULTS
            code = RpcCode.INVALID_PARAMS if is_params else RpcCode.INTERNAL_ERROR
            raise RpcError(code, fault["message"])
        data = None if fault else observation.get("result")
        content: Content = fault["message"] if fault else render_tool_result(data)
        blocks = [Text(text=content)] if isinstance(content, str) else content
        if isinstance(data, Mapping) and "data" in data:
            data = data["data"]
        return {
            "content": [block.model_dump(mode="json", by_alias=True) for block in blocks],
            "data": data,
            "is_error": bool(fault),
            "isError": bool(fault),
            "_meta": {"reward": payload["reward"], "done": payload["done"]},
        }

    async def _create(self, request: RpcRequest, session: ServedSession | None) -> JsonObject:
        if session is None:
            session = await self._sessions.create(persistent=True)
        return {"session_id": session.id}

    async def _close(self, request: RpcRequest, session: ServedSession | None) -> JsonObject:
        id = request.params.get("session_id")
        if not isinstance(id, str) or not id:
            raise RpcError(RpcCode.INVALID_PARAMS, "'session_id' is required.")
        if session is not None and id == session.id:
            raise RpcError(
                RpcCode.INVALID_REQUEST,
                "This session belongs to the WebSocket: close the WebSocket instead.",
            )
        named = self._sessions.get(id)
        if named.owner is not None:
            # A WebSocket is attached: the session ends when that disconnects.
            named.persistent = named.resumable = False
            return {"session_id": id, "closed": False, "closing": True}
        await self._sessions.destroy(named)
        return {"session_id": id, "closed": True}

    def _requested_session(
        self, request: RpcRequest, session: ServedSession | None
    ) -> ServedSession | None:
        """The caller's own session, or the one that the request names."""
        id = request.params.get("session_id")
        if session is None and isinstance(id, str) and id:
            return self._sessions.get(id)
        return session

    @asynccontextmanager
    async def _session_or_temporary(
        self, session: ServedSession | None
    ) -> AsyncIterator[ServedSession]:
        """Yield the session, or one that is destroyed after the call."""
        if session is not None:
            yield session
            return
        temporary = await self._sessions.create()
        try:
            yield temporary
        finally:
            await self._sessions.destroy(temporary)
