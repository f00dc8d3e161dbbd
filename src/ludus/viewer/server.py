"""Run the viewer on the loopback interface until it is interrupted."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from ludus.errors import ConfigError
from ludus.viewer.app import create_app, create_token
from ludus.viewer.library import Library

HOST = "127.0.0.1"


class ViewerServer(uvicorn.Server):
    """A uvicorn server that calls `on_ready`, and leaves signals to the caller."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal and return; uvicorn's own method raises the signal again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        import signal

        handlers = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def view(
    folders: Sequence[Path],
    *,
    port: int = 0,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the page over `folders`; `on_ready` is called with its address."""
    with bind_loopback(port) as bound, Library(folders) as library:
        build_server(library, bound, on_ready).run(sockets=[bound])


def build_server(
    library: Library, bound: socket.socket, on_ready: Callable[[str], None]
) -> ViewerServer:
    """The server of the page, with a new token."""
    token = create_token()
    address = f"http://{HOST}:{bound.getsockname()[1]}/{token}/"
    config = uvicorn.Config(
        create_app(library, token),
        log_level="error",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    return ViewerServer(config, lambda: on_ready(address))


def bind_loopback(port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ConfigError(f"`port` must be between 0 and 65535, got {port}.")
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
    except OSError as error:
        bound.close()
        reason = "in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise ConfigError(f"`port` {port} cannot be used: {reason}. Use another, or 0.") from None
    return bound
