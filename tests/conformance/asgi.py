"""ASGI apps as OpenEnv's Dockerfiles start them: under a plain uvicorn."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from world import wait_until


@contextmanager
def running_app(app: Any, **config: Any) -> Iterator[str]:
    """The address of an ASGI app under a plain uvicorn, in a thread of this process."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", **config))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
