"""The socket of a server, its signals, and its graceful shutdown."""

from __future__ import annotations

import errno
import gc
import resource
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ludus.serve.config import ServeError

_LISTEN_BACKLOG = 4096
_RECEIVE_BUFFER_BYTES = 256 * 1024
"""Small, because requests are small: it bounds what is read and parsed at once, before a client
that sends too much can be paused."""
Drain = Callable[[Callable[[], bool]], Awaitable[None]]


class InterruptibleServer(uvicorn.Server):
    """A uvicorn server that calls `on_ready`, and returns after SIGINT or SIGTERM."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop listening on a signal and return; uvicorn's own method raises the signal again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


class DrainingServer(InterruptibleServer):
    """A server that lets running work finish at shutdown, and drops clients that do not read.

    `drain` waits for the work; its argument returns whether to stop waiting.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        on_ready: Callable[[], None] = lambda: None,
        *,
        send_timeout: float,
    ) -> None:
        super().__init__(config, on_ready)
        self._drain, self._send_timeout = drain, send_timeout

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            # The kernel closes connections whose client takes nothing for so long. All protocols
            # stop answering a client while their write buffer is full. Only Linux has the option.
            if listener.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
                milliseconds = int(self._send_timeout * 1000)
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        # Modules stay loaded, and steps create few cycles: exclude what exists by now from garbage
        # collection, and collect less often.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in getattr(self, "servers", []):
            server.close()
        await self._drain(lambda: self.force_exit)
        await super().shutdown(sockets)


def build_uvicorn_config(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """The settings that all public servers share, and these options."""
    return uvicorn.Config(
        app,
        # X-Forwarded-For can be forged.
        proxy_headers=False,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=_LISTEN_BACKLOG,
        timeout_graceful_shutdown=5,
        **options,
    )


def bind_socket(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    if reuse_port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except (socket.gaierror, UnicodeError):
        listener.close()
        raise ServeError(f"Unknown host {host!r}. Use another `host`.") from None
    except OSError as error:
        listener.close()
        argument = "host" if error.errno == errno.EADDRNOTAVAIL else "port"
        raise ServeError(
            f"Port {port} of {host} cannot be used: {error.strerror}. Use another `{argument}`."
        ) from None
    return listener


def raise_file_limit() -> None:
    """Raise the soft limit of open files: every session has a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
