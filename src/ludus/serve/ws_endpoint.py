"""The endpoint `/ws`: one session per connection, which a client can resume after a disconnect."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from ludus.errors import SessionError, SessionLost, WireError
from ludus.protocol.frames import REQUESTS_HEADER, SESSION_HEADER, encode_error
from ludus.protocol.types import ErrorCode
from ludus.serve.sessions import RpcHandler, ServedSession, SessionRegistry
from ludus.serve.ws_connection import (
    AsgiConnection,
    Connection,
    Disconnected,
    Message,
    Receive,
    Send,
)


class WsEndpoint:
    """Serves connections: opens or resumes a session, and replies to each message."""

    def __init__(self, sessions: SessionRegistry, rpc: RpcHandler) -> None:
        self._sessions = sessions
        self._rpc = rpc
        self.max_frame = sessions.config.max_frame
        self.send_timeout = sessions.config.send_timeout

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """As an ASGI application."""
        connection = AsgiConnection(scope, receive, send)
        await connection.accept(self.handshake_headers(connection))
        await self.serve(connection)

    def handshake_headers(self, connection: Connection) -> dict[str, str]:
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

    async def serve(self, connection: Connection) -> None:
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

    async def _open_session(self, connection: Connection) -> ServedSession:
        assert connection.session_id is not None
        if connection.has_session_id:
            return await self._attach(connection, connection.session_id)
        creation = asyncio.ensure_future(
            self._sessions.create(id=connection.session_id, client=connection.client)
        )
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

    async def _attach(self, connection: Connection, id: str) -> ServedSession:
        """Attach a connection to an existing session."""
        session = self._sessions.get(id)
        previous, resumes = session.owner, connection.replies_received is not None
        if previous is not None and not resumes:
            raise SessionError(f"Session {id} already has an attached WebSocket.")
        session.owner, session.disconnected_at = connection, None
        if resumes:
            self._sessions.metrics.count_resumed()
        if isinstance(previous, Connection):
            # The client has reconnected before its old connection was detected as dead.
            previous.direct_handler = None
            await previous.close(1012)
        return session

    async def _serve_messages(self, connection: Connection, session: ServedSession) -> None:
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
        self, connection: Connection, session: ServedSession, *, clean: bool
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
