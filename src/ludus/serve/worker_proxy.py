"""Forwards requests to the worker that has their session.

All workers share one port, and each also listens on its own Unix socket. The id of a session
begins with the number of its worker.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, UnixConnector
from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from ludus.client.event_loop import create_background_task
from ludus.serve.access import read_authorization, select_subprotocol

_HOP_BY_HOP = {"connection", "content-length", "transfer-encoding", "date", "server"}


class WorkerProxy:
    """Forwards requests to other workers over their Unix sockets."""

    def __init__(self, worker: int, socket_paths: Sequence[Path]) -> None:
        self._worker = worker
        self._socket_paths = socket_paths

    def find_owner(self, session_id: str | None) -> Path | None:
        """The socket of the worker that has a session; None if it is this one."""
        prefix = (session_id or "").partition("-")[0]
        owner = int(prefix) if prefix.isdecimal() else self._worker
        if owner == self._worker or owner >= len(self._socket_paths):
            return None
        return self._socket_paths[owner]

    def find_scope_owner(self, scope: Scope) -> Path | None:
        """The socket of the worker that has the session that an upgrade requests."""
        query: str = scope["query_string"].decode("latin-1")
        return self.find_owner(next(iter(parse_qs(query).get("session_id", ())), None))

    async def forward_http(self, socket_path: Path, request: Request, body: bytes) -> Response:
        headers = {k: v for k, v in request.headers.items() if k not in _HOP_BY_HOP}
        url = f"http://worker{request.url.path}"
        async with (
            ClientSession(
                connector=UnixConnector(path=str(socket_path)),
                timeout=ClientTimeout(total=None, sock_connect=None),
                cookie_jar=DummyCookieJar(),
                auto_decompress=False,
            ) as client,
            # A file object, because aiohttp warns about bytes above one megabyte.
            client.request(
                request.method, url, data=io.BytesIO(body), headers=headers, allow_redirects=False
            ) as reply,
        ):
            headers = {k: v for k, v in reply.headers.items() if k.lower() not in _HOP_BY_HOP}
            return Response(await reply.read(), reply.status, headers=headers)


async def forward_websocket(socket_path: Path, scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    query = scope["query_string"].decode("latin-1")
    received = dict(scope["headers"])
    subprotocol = select_subprotocol(received)
    headers = {
        name.decode(): value.decode("latin-1")
        for name, value in received.items()
        if name.startswith(b"ludus-")
    }
    headers["authorization"] = read_authorization(received).decode("latin-1")
    try:
        inner = await unix_connect(
            str(socket_path),
            f"ws://worker/ws?{query}",
            additional_headers=headers,
            compression=None,
            max_size=None,
            # Backpressure: replies must wait in the other worker, not here.
            max_queue=1,
        )
    except (OSError, InvalidHandshake):
        # The worker has died, and its sessions with it.
        await send({"type": "websocket.accept", "headers": [], "subprotocol": subprotocol})
        await send({"type": "websocket.close", "code": 1012})
        return
    assert inner.response is not None
    session_headers = [
        (name.lower().encode(), value.encode())
        for name, value in inner.response.headers.raw_items()
        if name.lower().startswith("ludus-")
    ]
    await send({"type": "websocket.accept", "headers": session_headers, "subprotocol": subprotocol})

    async def pump_to_worker() -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            await inner.send(text if text is not None else message.get("bytes") or b"")
        if message.get("code") in (1000, 1001):
            await inner.close(1000)
        inner.transport.abort()

    to_worker = create_background_task(pump_to_worker())
    try:
        with suppress(OSError, RuntimeError):  # The client has disconnected.
            try:
                async for reply in inner:
                    await send({"type": "websocket.send", "text": reply})
                code = inner.close_code or 1000
            except ConnectionClosed as closed:
                code = closed.rcvd.code if closed.rcvd else 1012
            await send({"type": "websocket.close", "code": code})
    finally:
        to_worker.cancel()
        inner.transport.abort()
