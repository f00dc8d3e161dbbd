"""How JSON-RPC reaches us: POST /mcp (MCP's streamable HTTP, no streams) and WebSocket /mcp."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic_core import from_json, to_json

from ludus.errors import SessionError, SessionLost
from ludus.protocol.jsonrpc import RpcCode, RpcRefused, failure
from ludus.serve.access import client_address
from ludus.serve.forward import Forwarder
from ludus.serve.lines import AsgiLine, Gone, Message, Receive, Send
from ludus.serve.mcp import Caller, McpEndpoint
from ludus.serve.sessions import ServedSession, Sessions

SESSION = "mcp-session-id"


class McpHttp:
    """The routes of `/mcp`. The answer is always one JSON body with status 200."""

    def __init__(self, sessions: Sessions, rpc: McpEndpoint, forwarder: Forwarder) -> None:
        self._sessions, self._rpc, self._forwarder = sessions, rpc, forwarder

    def add_to(self, app: FastAPI) -> None:
        app.add_api_route("/mcp", self.post, methods=["POST"], response_model=None)
        app.add_api_route("/mcp", self.delete, methods=["DELETE"], response_model=None)

    async def post(self, request: Request) -> Response:
        """JSON-RPC 2.0: MCP, and OpenEnv's session methods."""
        body = await request.body()
        message = _object(body)
        named = request.headers.get(SESSION) or _session_param(message)
        if (elsewhere := self._forwarder.elsewhere(named)) is not None:
            return await self._forwarder.http(elsewhere, request, body)
        try:
            session = await self._session(request, message)
        except SessionError as error:
            lost = isinstance(error, SessionLost)
            refused = RpcRefused(RpcCode.SERVER_ERROR, str(error))
            return JSONResponse(failure(refused, message.get("id")), 404 if lost else 200)
        answer = await self._rpc.answer(body, Caller(client_address(request.scope), session))
        if answer is None:
            return Response(status_code=202)
        headers = {SESSION: session.id} if session is not None else None
        if session is not None and message.get("method") == "initialize" and "error" in answer:
            await self._sessions.destroy(session)
            headers = None
        return Response(
            to_json(answer, inf_nan_mode="null"), media_type="application/json", headers=headers
        )

    async def delete(self, request: Request) -> Response:
        """End an MCP session."""
        id = request.headers.get(SESSION, "")
        if (elsewhere := self._forwarder.elsewhere(id)) is not None:
            return await self._forwarder.http(elsewhere, request, b"")
        try:
            await self._sessions.destroy(self._sessions.get(id))
        except SessionLost as error:
            return JSONResponse({"detail": str(error)}, 404)
        return Response(status_code=204)

    async def _session(self, request: Request, message: dict[str, Any]) -> ServedSession | None:
        if message.get("method") == "initialize":
            return await self._sessions.create(kept=True, client=client_address(request.scope))
        id = request.headers.get(SESSION)
        return self._sessions.get(id) if id else None


class McpSocket:
    """The WebSocket `/mcp`: one session, JSON-RPC in and out."""

    def __init__(self, sessions: Sessions, rpc: McpEndpoint) -> None:
        self._sessions, self._rpc = sessions, rpc

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        line = AsgiLine(scope, receive, send)
        await line.accept({})
        try:
            session = await self._sessions.create(client=line.client)
        except SessionError as error:
            refused = RpcRefused(
                RpcCode.SERVER_ERROR, str(error), data=getattr(error, "details", None)
            )
            with suppress(Gone):
                await line.send(to_json(failure(refused)))
                await line.close()
            return
        try:
            while True:
                answer = await self._rpc.answer(await line.receive(), Caller(line.client, session))
                if answer is not None:
                    await line.send(to_json(answer, inf_nan_mode="null"))
        except Gone:
            pass
        finally:
            await self._sessions.destroy(session)


def _object(body: bytes) -> dict[str, Any]:
    """The body as far as it is an object; the endpoint answers for what it is not."""
    try:
        message = from_json(body)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _session_param(message: dict[str, Any]) -> str | None:
    params = message.get("params")
    id = params.get("session_id") if isinstance(params, dict) else None
    return id if isinstance(id, str) else None
