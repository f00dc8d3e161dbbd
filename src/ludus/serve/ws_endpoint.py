"""What is said on `/ws`: frames in, frames out, and what happens when the line drops."""

from __future__ import annotations

import asyncio
import time

from ludus.errors import SessionError, SessionLost, WireError
from ludus.protocol.frames import REQUESTS_HEADER, SESSION_HEADER, encode_error
from ludus.protocol.types import ErrorCode
from ludus.serve.connection import AsgiConnection, Connection, Disconnected, Message, Receive, Send
from ludus.serve.sessions import RpcHandler, ServedSession, SessionRegistry


class WsEndpoint:
    """Holds the conversation on each line."""

    def __init__(self, sessions: SessionRegistry, rpc: RpcHandler) -> None:
        self._sessions = sessions
        self._rpc = rpc
        self.max_frame = sessions.config.max_frame
        self.send_timeout = sessions.config.send_timeout

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """As an ASGI application."""
        line = AsgiConnection(scope, receive, send)
        await line.accept(self.handshake_headers(line))
        await self.serve(line)

    def handshake_headers(self, connection: Connection) -> dict[str, str]:
        """The headers of the reply to an upgrade: which session this is, and how far it got."""
        if connection.session_id is None:
            connection.session_id = self._sessions.new_id()
            return {SESSION_HEADER: connection.session_id}
        try:
            session = self._sessions.get(connection.session_id)
        except SessionLost:
            return {}
        told = {SESSION_HEADER: session.id}
        return (
            told
            if connection.replies_received is None
            else told | {REQUESTS_HEADER: str(session.requests)}
        )

    async def serve(self, connection: Connection) -> None:
        """Talk until one of both leaves."""
        try:
            session = await self._open_session(connection)
        except Disconnected:
            return
        except SessionError as error:
            await self._reject(connection, error)
            return
        try:
            await self._serve_messages(connection, session)
        except Disconnected as gone:
            connection.stop_reading()
            await self._handle_disconnect(connection, session, clean=gone.clean)
        else:
            await self._handle_disconnect(connection, session, clean=True)
            await connection.close()

    async def _open_session(self, connection: Connection) -> ServedSession:
        assert connection.session_id is not None
        if connection.has_session_id:
            return await self._attach(connection, connection.session_id)
        making = asyncio.ensure_future(
            self._sessions.create(id=connection.session_id, client=connection.client)
        )
        try:
            session = await connection.wait_while_connected(making)
        except Disconnected:
            await self._cancel_creation(making)
            raise
        session.owner, session.resumable = connection, connection.resumable
        return session

    async def _cancel_creation(self, making: asyncio.Task[ServedSession]) -> None:
        """The client hung up while it was waiting for its session."""
        making.cancel()
        await asyncio.wait((making,))
        if not making.cancelled() and making.exception() is None:
            await self._sessions.destroy(making.result())

    async def _attach(self, connection: Connection, id: str) -> ServedSession:
        session = self._sessions.get(id)
        before, returning = session.owner, connection.replies_received is not None
        if before is not None and not returning:
            raise SessionError(f"Session {id} already has an attached WebSocket.")
        session.owner, session.disconnected_at = connection, None
        if returning:
            self._sessions.metrics.count_resumed()
        if isinstance(before, Connection):
            # The client is back before its old line was seen to be dead.
            before.direct_handler = None
            await before.close(1012)
        return session

    async def _serve_messages(self, connection: Connection, session: ServedSession) -> None:
        """Answer until the client closes the session; raises `Gone` when the line drops."""
        if connection.replies_received is not None:
            await self._send_missed_reply(connection, session)
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

    async def _send_missed_reply(self, connection: Connection, session: ServedSession) -> None:
        """Give a client that came back the reply that it is waiting for."""
        assert connection.replies_received is not None
        if session.running is not None and not session.running.done():
            await asyncio.wait([session.running])
        if session.replies > connection.replies_received:
            await connection.send(session.last_reply)

    async def _handle_disconnect(
        self, connection: Connection, session: ServedSession, *, clean: bool
    ) -> None:
        connection.direct_handler = None
        if session.owner is not connection:
            return
        session.owner = None
        nothing_to_lose = clean or not session.resumable or session.requests == 0
        if session.closed or (not session.persistent and nothing_to_lose):
            await self._sessions.destroy(session)
        else:
            session.disconnected_at = session.last_used_at = time.monotonic()

    async def _reject(self, connection: Connection, error: SessionError) -> None:
        if not isinstance(error, WireError):
            error = WireError(str(error), ErrorCode.SESSION_ERROR)
        self._sessions.metrics.count_error(error.code)
        try:
            await connection.send(encode_error(error))
        except Disconnected:
            return
        await connection.close()
