"""Write timeout: abort connections whose client does not read.

All protocols of the servers (HTTP, uvicorn's WebSockets, the fast path) stop answering a
client while the write buffer of its connection is above the high-water mark. This module ends that
wait once the buffer no longer shrinks.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class WriteTimeout:
    """Aborts a connection if no byte leaves its write buffer for `seconds`.

    A slow client that reads something within that time is not disconnected.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._transport: asyncio.WriteTransport
        self._buffered = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.WriteTransport) -> None:
        """Start the timer; called when the transport pauses writing, or is closed."""
        self._transport = transport
        if self._timer is None:
            self._watch()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        self._buffered = self._transport.get_write_buffer_size()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        buffered = self._transport.get_write_buffer_size()
        if buffered >= self._buffered > 0:
            # Not `close`, which would wait until the buffer is empty.
            self._transport.abort()
        elif buffered:
            self._watch()


class WriteTimeoutMixin(asyncio.Protocol):
    """A protocol with a write timeout; must be the first base class."""

    transport: asyncio.Transport
    _write_timeout: WriteTimeout

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timeout.start(self.transport)

    def resume_writing(self) -> None:
        self._write_timeout.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._write_timeout.stop()
        super().connection_lost(exc)


class TimedHttpProtocol(WriteTimeoutMixin, HttpToolsProtocol):
    """uvicorn's HTTP protocol, with a write timeout."""

    def __init__(self, *args: Any, send_timeout: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._write_timeout = WriteTimeout(send_timeout)
