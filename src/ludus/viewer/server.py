"""Run the viewer on the loopback interface until it is interrupted."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from ludus.errors import ConfigError, NameFlags
from ludus.serve.listening import InterruptibleServer, bind_socket
from ludus.viewer.app import create_app, create_token
from ludus.viewer.library import Library

HOST = "127.0.0.1"


def view(
    folders: Sequence[Path],
    *,
    port: int = 0,
    on_ready: Callable[[str], None] = lambda address: None,
    name_flags: NameFlags = lambda text, command: text,
) -> None:
    """Serve the page over `folders`; `on_ready` is called with its address.

    `name_flags` replaces arguments in advice by flags of a command.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"`port` must be between 0 and 65535, got {port}.")
    with (
        bind_socket(HOST, port) as bound,
        Library(folders, name_flags=name_flags) as library,
    ):
        build_server(library, bound, on_ready).run(sockets=[bound])


def build_server(
    library: Library, bound: socket.socket, on_ready: Callable[[str], None]
) -> InterruptibleServer:
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
    return InterruptibleServer(config, lambda: on_ready(address))
