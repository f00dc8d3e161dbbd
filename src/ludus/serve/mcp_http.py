"""Transports of JSON-RPC: POST /mcp (MCP's streamable HTTP, without streams), WebSocket /mcp."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic_core import from_json, to_json

from ludus.errors import SessionError, SessionLost
from ludus.protocol.jsonrpc import RpcCode, RpcError, error_response
from ludus.serve.client_address import client_address
from ludus.serve.mcp import McpEndpoint, RpcCaller
from ludus.serve.sessions import SessionRegistry
from ludus.serve.worker_proxy import WorkerProxy
from ludus.serve.ws_connection import AsgiConnection, Disconnected, Message, Receive, Send

SESSION_HEADER = "mcp-session-id"


class McpHttp:
    """The HTTP routes of `/mcp`. The response to a request is one JSON body."""

    def __init__(self, sessions: SessionRegistry, rpc: McpEndpoint, proxy: WorkerProxy) -> None:
        self._sessions, self._rpc, self._proxy = sessions, rpc, proxy

    def add_routes(self, app: FastAPI) -> None:
        app.add_api_route("/mcp", self.post, methods=["POST"], response_model=None)
        app.add_api_route("/mcp", self.delete, methods=["DELETE"], response_model=None)

    async def post(self, request: Request) -> Response:
        """JSON-RPC 2.0: MCP, and OpenEnv's session methods."""
        body = await request.body()
        message = _parse_mcp_body(body)
        params = message.get("params")
        session_param = params.get("session_id") if isinstance(params, dict) else None
        session_id = request.headers.get(SESSION_HEADER)
        owner_id = session_id or (session_param if isinstance(session_param, str) else None)
        if (owner := self._proxy.find_owner(owner_id)) is not None:
            return await self._proxy.forward_http(owner, request, body)
        client = client_address(request.scope)
        try:
            if message.get("method") != "initialize":
                session = self._sessions.get(session_id) if session_id else None
            else:
                session = await self._sessions.create(persistent=True, client=client)
        except SessionError as error:
            lost = isinstance(error, SessionLost)
            rpc_error = RpcError(RpcCode.SERVER_ERROR, str(error))
            return JSONResponse(error_response(rpc_error, message.get("id")), 404 if lost else 200)
        answer = await self._rpc.handle(body, RpcCaller(client, session))
        if answer is None:
            return Response(status_code=202)
        headers = {SESSION_HEADER: session.id} if session is not None else None
        if session is not None and message.get("method") == "initialize" and "error" in answer:
            await self._sessions.destroy(session)
            headers = None
        return Response(
            to_json(answer, inf_nan_mode="null"), media_type="application/json", headers=headers
        )

    async def delete(self, request: Request) -> Response:
        """End an MCP session."""
        id = request.headers.get(SESSION_HEADER, "")
        if (owner := self._proxy.find_owner(id)) is not None:
            return await self._proxy.forward_http(owner, request, b"")
        try:
            await self._sessions.destroy(self._sessions.get(id))
        except SessionLost as error:
            return JSONResponse({"detail": str(error)}, 404)
        return Response(status_code=204)


class McpWebSocket:
    """The WebSocket `/mcp`: JSON-RPC in one session per connection."""

    def __init__(self, sessions: SessionRegistry, rpc: McpEndpoint) -> None:
        self._sessions, self._rpc = sessions, rpc

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        connection = AsgiConnection(scope, receive, send)
        await connection.accept({})
        try:
            session = await self._sessions.create(client=connection.client)
        except SessionError as error:
            rpc_error = RpcError(
                RpcCode.SERVER_ERROR, str(error), data=getattr(error, "details", None)
            )
            with suppress(Disconnected):
                await connection.send(to_json(error_response(rpc_error)))
                await connection.close()
            return
        try:
            while True:
                answer = await self._rpc.handle(
                    await connection.receive(), RpcCaller(connection.client, session)
                )
                if answer is not None:
                    await connection.send(to_json(answer, inf_nan_mode="null"))
        except Disconnected:
            pass
        finally:
            await self._sessions.destroy(session)


def _parse_mcp_body(body: bytes) -> dict[str, Any]:
    """The message in the body of POST /mcp; {} if it is none: the endpoint reports the error."""
    try:
        message = from_json(body)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
