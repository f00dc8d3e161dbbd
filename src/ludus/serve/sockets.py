"""What is said on `/ws`: frames in, frames out, and what happens when the line drops."""

from __future__ import annotations

import asyncio
import time

from ludus.errors import SessionError, SessionLost, WireError
from ludus.protocol.frames import REQUESTS_HEADER, SESSION_HEADER, encode_error
from ludus.protocol.types import ErrorCode
from ludus.serve.lines import AsgiLine, Gone, Line, Message, Receive, Send
from ludus.serve.sessions import Rpc, ServedSession, Sessions


class SocketEndpoint:
    """Holds the conversation on each line."""

    def __init__(self, sessions: Sessions, rpc: Rpc) -> None:
        self._sessions = sessions
        self._rpc = rpc
        self.max_frame = sessions.settings.max_frame
        self.send_timeout = sessions.settings.send_timeout

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """As an ASGI application."""
        line = AsgiLine(scope, receive, send)
        await line.accept(self.greet(line))
        await self.serve(line)

    def greet(self, line: Line) -> dict[str, str]:
        """The headers of the reply to an upgrade: which session this is, and how far it got."""
        if line.session_id is None:
            line.session_id = self._sessions.new_id()
            return {SESSION_HEADER: line.session_id}
        try:
            session = self._sessions.get(line.session_id)
        except SessionLost:
            return {}
        told = {SESSION_HEADER: session.id}
        return told if line.replies is None else told | {REQUESTS_HEADER: str(session.requests)}

    async def serve(self, line: Line) -> None:
        """Talk until one of both leaves."""
        try:
            session = await self._session_of(line)
        except Gone:
            return
        except SessionError as error:
            await self._refuse(line, error)
            return
        try:
            await self._talk(line, session)
        except Gone as gone:
            line.let_go()
            await self._left(line, session, clean=gone.clean)
        else:
            await self._left(line, session, clean=True)
            await line.close()

    async def _session_of(self, line: Line) -> ServedSession:
        assert line.session_id is not None
        if line.named_session:
            return await self._attach(line, line.session_id)
        making = asyncio.ensure_future(
            self._sessions.create(id=line.session_id, client=line.client)
        )
        try:
            session = await line.watch(making)
        except Gone:
            await self._never_mind(making)
            raise
        session.owner, session.resumable = line, line.resumable
        return session

    async def _never_mind(self, making: asyncio.Task[ServedSession]) -> None:
        """The client hung up while it was waiting for its session."""
        making.cancel()
        await asyncio.wait((making,))
        if not making.cancelled() and making.exception() is None:
            await self._sessions.destroy(making.result())

    async def _attach(self, line: Line, id: str) -> ServedSession:
        session = self._sessions.get(id)
        before, returning = session.owner, line.replies is not None
        if before is not None and not returning:
            raise SessionError(f"Session {id} already has an attached WebSocket.")
        session.owner, session.left_at = line, None
        if returning:
            self._sessions.metrics.resumed()
        if isinstance(before, Line):
            # The client is back before its old line was seen to be dead.
            before.direct = None
            await before.close(1012)
        return session

    async def _talk(self, line: Line, session: ServedSession) -> None:
        """Answer until the client closes the session; raises `Gone` when the line drops."""
        if line.replies is not None:
            await self._catch_up(line, session)
        instant = session.host.instant
        if instant:
            line.direct = session.answer_now
        while not session.ended:
            text = await line.receive()
            if instant:
                reply = await session.answer(text, self._rpc)
            else:
                session.running = asyncio.ensure_future(session.answer(text, self._rpc))
                reply = await line.watch(session.running)
            if reply is not None:
                await line.send(reply)
            line.answered()

    async def _catch_up(self, line: Line, session: ServedSession) -> None:
        """Give a client that came back the reply that it is waiting for."""
        assert line.replies is not None
        if session.running is not None and not session.running.done():
            await asyncio.wait([session.running])
        if session.replies > line.replies:
            await line.send(session.last_reply)

    async def _left(self, line: Line, session: ServedSession, *, clean: bool) -> None:
        line.direct = None
        if session.owner is not line:
            return
        session.owner = None
        nothing_to_lose = clean or not session.resumable or session.requests == 0
        if session.ended or (not session.kept and nothing_to_lose):
            await self._sessions.destroy(session)
        else:
            session.left_at = session.used_at = time.monotonic()

    async def _refuse(self, line: Line, error: SessionError) -> None:
        if not isinstance(error, WireError):
            error = WireError(str(error), ErrorCode.SESSION_ERROR)
        self._sessions.metrics.failed(error.code)
        try:
            await line.send(encode_error(error))
        except Gone:
            return
        await line.close()
