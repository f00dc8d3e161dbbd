"""WebSocket connections, independent of the server that accepts them.

`AsgiConnection` works on any ASGI server. `ludus serve` uses the faster one of
`ludus.serve.ws_fast_path`.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import parse_qs

from ludus.client.event_loop import create_background_task
from ludus.protocol.frames import RESUME_HEADER
from ludus.serve.access import select_subprotocol
from ludus.serve.client_address import client_address

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
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


class Connection:
    """What the client sent when it connected, and reading ahead while a message is handled."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
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
        self.client = client_address(scope)
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


class AsgiConnection(Connection):
    """A WebSocket connection of any ASGI server."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        super().__init__(scope)
        self._receive, self._send = receive, send

    async def accept(self, headers: Mapping[str, str]) -> None:
        """Accept the connection; `headers` are those of the reply to the upgrade."""
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
