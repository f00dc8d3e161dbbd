"""The endpoint `/ws`: one session per connection, which a client can resume after a disconnect.

`AsgiWsConnection` works on any ASGI server. `ludus serve` uses the faster connection of
`ludus.serve.ws_fast_path`.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from ludus.client.event_loop import create_background_task
from ludus.errors import SessionError, SessionLost, WireError
from ludus.protocol.frames import REQUESTS_HEADER, RESUME_HEADER, SESSION_HEADER, encode_error
from ludus.protocol.types import ErrorCode
from ludus.serve.access import select_subprotocol
from ludus.serve.metrics import RESUMED
from ludus.serve.sessions import RpcHandler, ServedSession, ServedSessions
from ludus.serve.worker_proxy import WorkerProxy, forward_websocket

DirectHandler = Callable[[bytes], bytes | None]
T = TypeVar("T")

_MAX_READ_AHEAD = 16
"""Messages that are read while one is being handled; further ones wait in the client."""
CLEAN_CLOSE_CODES = (1000, 1001)
"""Close codes of a client that disconnects on purpose."""


class Disconnected(Exception):
    """The client has disconnected; `clean` says whether it closed the connection on purpose."""

    def __init__(self, clean: bool = False) -> None:
        self.clean = clean


class WsConnection:
    """What the client sent when it connected, and reading ahead while a message is handled."""

    def __init__(self, scope: Scope) -> None:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        self.session_id: str | None = next(iter(query.get("session_id", ())), None)
        self.has_session_id = self.session_id is not None
        """Whether the client requests an existing session."""
        replies = query.get("replies", [""])[0]
        self.replies_received = int(replies) if replies.isdecimal() else None
        """Number of replies that a reconnecting client has received; None for other clients."""
        headers = dict(scope["headers"])
        self.resumable = RESUME_HEADER.encode() in headers
        self.subprotocol = select_subprotocol(headers)
        self.direct_handler: DirectHandler | None = None
        """Handles a message within the callback of the transport, or returns None to queue it."""
        self._received_early: deque[bytes] = deque()
        self._read_ahead: asyncio.Task[bytes] | None = None

    @abstractmethod
    async def send(self, text: bytes) -> None:
        """Send a message; raises `Disconnected`."""

    @abstractmethod
    async def close(self, code: int = 1000) -> None:
        """Close the connection."""

    @abstractmethod
    async def _read_next(self) -> bytes:
        """The next message from the transport; raises `Disconnected`."""

    async def receive(self) -> bytes:
        """The next message; raises `Disconnected`."""
        if self._received_early:
            return self._received_early.popleft()
        early, self._read_ahead = self._read_ahead, None
        return await (early or self._read_next())

    def mark_answered(self) -> None:
        """To be called after the reply to a received message was sent."""

    async def wait_while_connected(self, work: asyncio.Task[T]) -> T:
        """Wait for a task; raises `Disconnected` if the client disconnects first.

        Messages that arrive meanwhile are kept for `receive`: only reading shows a disconnect.
        """
        while not work.done():
            if len(self._received_early) >= _MAX_READ_AHEAD:
                await asyncio.wait((work,))
                break
            self._read_ahead = self._read_ahead or create_background_task(self._read_next())
            await asyncio.wait((work, self._read_ahead), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                early, self._read_ahead = self._read_ahead, None
                self._received_early.append(early.result())
        return work.result()

    def stop_reading(self) -> None:
        """Cancel a read that is in progress."""
        if self._read_ahead is not None:
            self._read_ahead.cancel()
            self._read_ahead = None


class AsgiWsConnection(WsConnection):
    """A WebSocket connection of any ASGI server."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope)
        self._receive, self._send = receive, send

    async def accept(self, headers: Mapping[str, str]) -> None:
        """Accept the WebSocket; `headers` go into the reply to the upgrade."""
        await self._receive()
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send(
            {"type": "websocket.accept", "headers": encoded, "subprotocol": self.subprotocol}
        )

    async def send(self, text: bytes) -> None:
        try:
            await self._send({"type": "websocket.send", "text": text.decode()})
        except (OSError, RuntimeError):
            raise Disconnected from None

    async def close(self, code: int = 1000) -> None:
        self.stop_reading()
        # The client may have closed the connection first.
        with suppress(OSError, RuntimeError):
            await self._send({"type": "websocket.close", "code": code})

    async def _read_next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise Disconnected(clean=message.get("code") in CLEAN_CLOSE_CODES)
        text = message.get("text")
        return text.encode() if text is not None else message.get("bytes") or b""


class WsEndpoint:
    """Serves connections: opens or resumes a session, and replies to each message."""

    def __init__(self, sessions: ServedSessions, rpc: RpcHandler, proxy: WorkerProxy) -> None:
        self.config, self.proxy = sessions.config, proxy
        self._sessions, self._rpc = sessions, rpc

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As an ASGI application; sessions of other workers are forwarded to them."""
        if (owner := self.proxy.find_scope_owner(scope)) is not None:
            await forward_websocket(owner, scope, receive, send)
            return
        connection = AsgiWsConnection(scope, receive, send)
        await connection.accept(self.handshake_headers(connection))
        await self.serve(connection)

    def handshake_headers(self, connection: WsConnection) -> dict[str, str]:
        """The headers of the reply to an upgrade: the session's id, and its number of requests."""
        if connection.session_id is None:
            connection.session_id = self._sessions.new_id()
            return {SESSION_HEADER: connection.session_id}
        try:
            session = self._sessions.get(connection.session_id)
        except SessionLost:
            return {}
        headers = {SESSION_HEADER: session.id}
        if connection.replies_received is not None:
            headers[REQUESTS_HEADER] = str(session.requests)
        return headers

    async def serve(self, connection: WsConnection) -> None:
        """Serve a connection until one side closes it."""
        try:
            session = await self._open_session(connection)
        except Disconnected:
            return
        except SessionError as error:
            if not isinstance(error, WireError):
                error = WireError(str(error), ErrorCode.SESSION_ERROR)
            self._sessions.metrics.count_error(error.code)
            with suppress(Disconnected):
                await connection.send(encode_error(error))
                await connection.close()
            return
        try:
            await self._serve_messages(connection, session)
        except Disconnected as disconnected:
            connection.stop_reading()
            await self._handle_disconnect(connection, session, clean=disconnected.clean)
        else:
            await self._handle_disconnect(connection, session, clean=True)
            await connection.close()

    async def _open_session(self, connection: WsConnection) -> ServedSession:
        """Attach the connection to the session that it requests, or to a new one."""
        assert connection.session_id is not None
        if connection.has_session_id:
            session = self._sessions.get(connection.session_id)
            previous, resumes = session.owner, connection.replies_received is not None
            if previous is not None and not resumes:
                raise SessionError(f"Session {session.id} already has an attached WebSocket.")
            session.owner, session.disconnected_at = connection, None
            if resumes:
                self._sessions.metrics.count(RESUMED)
            if isinstance(previous, WsConnection):
                # The client has reconnected before its old connection was detected as dead.
                previous.direct_handler = None
                await previous.close(1012)
            return session
        creation = asyncio.ensure_future(self._sessions.create(id=connection.session_id))
        try:
            session = await connection.wait_while_connected(creation)
        except Disconnected:
            creation.cancel()
            await asyncio.wait((creation,))
            # The session may have been created just before the cancellation.
            if not creation.cancelled() and creation.exception() is None:
                await self._sessions.destroy(creation.result())
            raise
        session.owner, session.resumable = connection, connection.resumable
        return session

    async def _serve_messages(self, connection: WsConnection, session: ServedSession) -> None:
        """Reply to messages until the client closes the session; raises `Disconnected`."""
        if connection.replies_received is not None:
            # The reply may have been lost with the client's previous connection.
            if session.running is not None and not session.running.done():
                await asyncio.wait([session.running])
            if session.replies > connection.replies_received:
                await connection.send(session.last_reply)
        instant = session.runner.instant
        if instant:
            connection.direct_handler = session.handle_sync
        while not session.closed:
            text = await connection.receive()
            if instant:
                reply = await session.handle(text, self._rpc)
            else:
                session.running = asyncio.ensure_future(session.handle(text, self._rpc))
                reply = await connection.wait_while_connected(session.running)
            if reply is not None:
                await connection.send(reply)
            connection.mark_answered()

    async def _handle_disconnect(
        self, connection: WsConnection, session: ServedSession, *, clean: bool
    ) -> None:
        """Destroy the session, or keep it for a client that can resume it."""
        connection.direct_handler = None
        if session.owner is not connection:
            return
        session.owner = None
        abandoned = clean or not session.resumable or session.requests == 0
        if session.closed or (not session.persistent and abandoned):
            await self._sessions.destroy(session)
        else:
            session.disconnected_at = session.last_used_at = time.monotonic()
