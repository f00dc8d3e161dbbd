"""JSON-RPC on `/mcp`: OpenEnv's session methods, and MCP itself, so that real MCP clients connect.

A session that MCP's `initialize` made begins an episode at once and tells the task in its
`instructions`: MCP knows no reset. Tool errors are results there; for OpenEnv's clients they are
JSON-RPC errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ludus import __version__
from ludus.data.content import Content, Text, content_text
from ludus.errors import CapacityReached, FactoryFailed, SessionError, SessionLost
from ludus.protocol.frames import result_payload
from ludus.protocol.jsonrpc import (
    RpcCode,
    RpcError,
    RpcRequest,
    error_response,
    parse_request,
    success_response,
)
from ludus.protocol.observation_text import render_observation, render_tool_result
from ludus.serve.sessions import ServedSession, SessionRegistry

PROTOCOL_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
_INVALID_PARAMS_FAULTS = ("tool_not_found", "invalid_args")


@dataclass(frozen=True, slots=True)
class RpcCaller:
    """Who sent a request: a client, and the session that it has, if it has one."""

    client: str
    session: ServedSession | None = None


Method = Callable[[RpcRequest, RpcCaller], Awaitable[Any]]


class McpEndpoint:
    """Answers JSON-RPC, with or without a session of the caller's."""

    def __init__(self, sessions: SessionRegistry) -> None:
        self._sessions = sessions
        self._methods: dict[str, Method] = {
            "initialize": self._initialize,
            "ping": self._ping,
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "openenv/session/create": self._create,
            "openenv/session/close": self._close,
        }

    async def handle(
        self, body: str | bytes | Mapping[str, Any], caller: RpcCaller
    ) -> dict[str, Any] | None:
        """The response to one request; None for a notification."""
        id = None
        try:
            request = parse_request(dict(body) if isinstance(body, Mapping) else body)
            id = request.id
            if request.method.startswith("notifications/"):
                return None
            if request.method not in self._methods:
                raise RpcError(RpcCode.METHOD_NOT_FOUND, f"Method not found: {request.method[:80]}")
            return success_response(await self._methods[request.method](request, caller), id)
        except RpcError as refused:
            return error_response(refused, id)
        except SessionError as error:
            return error_response(_to_rpc_error(error), id)

    async def handle_in_session(
        self, session: ServedSession, body: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The `mcp` frames of a socket."""
        return await self.handle(body, RpcCaller(session.client, session))

    async def _initialize(self, request: RpcRequest, caller: RpcCaller) -> Any:
        asked, session = request.params.get("protocolVersion"), caller.session
        if session is None:
            raise RpcError(RpcCode.INVALID_REQUEST, "initialize needs a connection of its own.")
        session.speaks_mcp = True
        seen = await session.reset(_task_from_meta(request.params))
        words = content_text(render_observation(result_payload(seen)["observation"]))
        contract = self._sessions.env_spec
        return {
            "protocolVersion": asked if asked in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[1],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": contract.id, "version": __version__},
            "instructions": f"{contract.description}\n\n{words}",
        }

    async def _ping(self, request: RpcRequest, caller: RpcCaller) -> Any:
        return {}

    async def _list_tools(self, request: RpcRequest, caller: RpcCaller) -> Any:
        borrowed = self._borrow_session(request, caller)
        declared = self._sessions.env_spec.tools
        if declared is None:
            async with borrowed as one:
                declared = await one.runner.tools()
        return {"tools": [tool.model_dump(mode="json", by_alias=True) for tool in declared]}

    async def _call_tool(self, request: RpcRequest, caller: RpcCaller) -> Any:
        name, arguments = request.params.get("name"), request.params.get("arguments") or {}
        if not isinstance(name, str) or not name:
            raise RpcError(RpcCode.INVALID_PARAMS, "Missing 'name' in params.")
        if not isinstance(arguments, Mapping):
            raise RpcError(RpcCode.INVALID_PARAMS, "'arguments' must be an object.")
        async with self._borrow_session(request, caller) as one:
            if one.runner.episode_id is None and one.runner.env_spec.native:
                await one.reset({})
            action = {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}
            seen = result_payload(await one.step(action))
            return _tool_result(seen, as_results=one.speaks_mcp)

    async def _create(self, request: RpcRequest, caller: RpcCaller) -> Any:
        made = caller.session
        if made is None:
            made = await self._sessions.create(persistent=True, client=caller.client)
        return {"session_id": made.id}

    async def _close(self, request: RpcRequest, caller: RpcCaller) -> Any:
        id = _session_id(request)
        if not id:
            raise RpcError(RpcCode.INVALID_PARAMS, "'session_id' is required.")
        if caller.session is not None and id == caller.session.id:
            raise RpcError(
                RpcCode.INVALID_REQUEST, "This session is the socket's own: close the socket."
            )
        target = self._sessions.get(id)
        if target.owner is not None:
            # The socket that holds it goes on; the session ends when that socket leaves.
            target.persistent = target.resumable = False
            return {"session_id": id, "closed": False, "closing": True}
        await self._sessions.destroy(target)
        return {"session_id": id, "closed": True}

    def _borrow_session(self, request: RpcRequest, caller: RpcCaller) -> _BorrowedSession:
        session = caller.session
        if session is None and (id := _session_id(request)):
            session = self._sessions.get(id)
        return _BorrowedSession(self._sessions, RpcCaller(caller.client, session))


class _BorrowedSession:
    """The caller's session, or one that lives for this call only."""

    def __init__(self, sessions: SessionRegistry, caller: RpcCaller) -> None:
        self._sessions, self._caller = sessions, caller

    async def __aenter__(self) -> ServedSession:
        given, client = self._caller.session, self._caller.client
        self._used = given or await self._sessions.create(client=client)
        return self._used

    async def __aexit__(self, *_: object) -> None:
        if self._caller.session is None:
            await self._sessions.destroy(self._used)


def _tool_result(payload: Mapping[str, Any], *, as_results: bool) -> dict[str, Any]:
    observation = payload["observation"]
    fault = observation.get("error")
    if fault and not as_results:
        code = (
            RpcCode.INVALID_PARAMS
            if fault["error_type"] in _INVALID_PARAMS_FAULTS
            else RpcCode.INTERNAL_ERROR
        )
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


def _task_from_meta(params: Mapping[str, Any]) -> dict[str, Any]:
    """Task arguments that a client put into `initialize`, under `_meta.task`."""
    meta = params.get("_meta")
    task = meta.get("task") if isinstance(meta, Mapping) else None
    return dict(task) if isinstance(task, Mapping) else {}


def _session_id(request: RpcRequest) -> str:
    id = request.params.get("session_id")
    return id if isinstance(id, str) else ""


def _to_rpc_error(error: SessionError) -> RpcError:
    if isinstance(error, CapacityReached | FactoryFailed):
        return RpcError(RpcCode.SERVER_ERROR, str(error), data=error.details)
    if isinstance(error, SessionLost):
        return RpcError(RpcCode.INVALID_PARAMS, str(error))
    return RpcError(RpcCode.INTERNAL_ERROR, str(error))
