"""The WebSocket `/ws`: frames in, frames out, and what happens when the line drops.

Spoken as bare ASGI: between the server and the environment stands nothing that costs time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import parse_qs

from ludus.errors import SessionError, WireError
from ludus.protocol.frames import (
    REQUESTS_HEADER,
    RESUME_HEADER,
    SESSION_HEADER,
    encode_error,
)
from ludus.protocol.types import ErrorCode
from ludus.serve.sessions import Rpc, ServedSession, Sessions

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")

_BACKLOG = 16
"""Messages that are read ahead while one is being answered; the rest waits in the client."""


class Gone(Exception):
    """The client has left; `clean` says whether it said so."""

    def __init__(self, clean: bool = False) -> None:
        self.clean = clean


class Line:
    """One socket: what the ASGI server hands us, with the client's words about itself."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        query = parse_qs(scope["query_string"].decode("latin-1"))
        headers = dict(scope["headers"])
        self.session_id = query.get("session_id", [None])[0]
        replies = query.get("replies", [""])[0]
        self.replies = int(replies) if replies.isdecimal() else None
        """How many replies a returning client has; None for one that does not return."""
        self.resumable = RESUME_HEADER.encode() in headers
        self._backlog: deque[str | bytes] = deque()
        self._early: asyncio.Task[str | bytes] | None = None

    async def accept(self, **headers: str) -> None:
        await self._receive()
        named = [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        await self._send({"type": "websocket.accept", "headers": named})

    async def receive(self) -> str | bytes:
        """The next message; raises `Gone` when there will be none."""
        if self._backlog:
            return self._backlog.popleft()
        early, self._early = self._early, None
        return await (early or self._next())

    async def watch(self, work: asyncio.Task[T]) -> T:
        """Wait for this work; raises `Gone` if the client leaves first. Messages are kept."""
        while not work.done():
            if len(self._backlog) >= _BACKLOG:
                await asyncio.wait((work,))
                break
            self._early = self._early or asyncio.ensure_future(self._next())
            await asyncio.wait((work, self._early), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                early, self._early = self._early, None
                self._backlog.append(early.result())
        return work.result()

    async def _next(self) -> str | bytes:
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise Gone(clean=message.get("code") in (1000, 1001))
        text = message.get("text")
        return text if text is not None else message.get("bytes") or b""

    async def send(self, text: str) -> None:
        try:
            await self._send({"type": "websocket.send", "text": text})
        except (OSError, RuntimeError):
            raise Gone from None

    async def close(self, code: int = 1000) -> None:
        self.let_go()
        # It may have hung up first.
        with suppress(OSError, RuntimeError):
            await self._send({"type": "websocket.close", "code": code})

    def let_go(self) -> None:
        """Stop listening."""
        if self._early is not None:
            self._early.cancel()
            self._early = None


class SocketEndpoint:
    """The ASGI application behind `/ws`."""

    def __init__(self, sessions: Sessions, rpc: Rpc) -> None:
        self._sessions = sessions
        self._rpc = rpc

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        line = Line(scope, receive, send)
        try:
            session = await (self._attach(line) if line.session_id else self._begin(line))
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

    async def _begin(self, line: Line) -> ServedSession:
        id = self._sessions.new_id()
        await line.accept(**{SESSION_HEADER: id})
        making = asyncio.ensure_future(self._sessions.create(id=id))
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

    async def _attach(self, line: Line) -> ServedSession:
        assert line.session_id is not None
        try:
            session = self._sessions.get(line.session_id)
            if session.owner is not None and line.replies is None:
                raise SessionError(f"Session {line.session_id} already has an attached WebSocket.")
        except SessionError:
            await line.accept()
            raise
        if isinstance(session.owner, Line):
            # The client is back before its old line was seen to be dead.
            await session.owner.close(1012)
        session.owner, session.left_at = line, None
        if line.replies is None:
            await line.accept(**{SESSION_HEADER: session.id})
        else:
            self._sessions.metrics.resumed.inc()
            await line.accept(
                **{SESSION_HEADER: session.id, REQUESTS_HEADER: str(session.requests)}
            )
        return session

    async def _talk(self, line: Line, session: ServedSession) -> None:
        """Answer until the client closes the session; raises `Gone` when the line drops."""
        if line.replies is not None:
            await self._catch_up(line, session)
        while not session.ended:
            text = await line.receive()
            if session.host.instant:
                reply = await session.answer(text, self._rpc)
            else:
                session.running = asyncio.ensure_future(session.answer(text, self._rpc))
                reply = await line.watch(session.running)
            if reply is not None:
                await line.send(reply)

    async def _catch_up(self, line: Line, session: ServedSession) -> None:
        """Give a client that came back the reply that it is waiting for."""
        assert line.replies is not None
        if session.running is not None and not session.running.done():
            await asyncio.wait([session.running])
        if session.replies > line.replies:
            await line.send(session.last_reply)

    async def _left(self, line: Line, session: ServedSession, *, clean: bool) -> None:
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
        self._sessions.metrics.errors.labels(error.code).inc()
        try:
            await line.send(encode_error(error))
        except Gone:
            return
        await line.close()
