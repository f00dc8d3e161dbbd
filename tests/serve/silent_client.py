"""A client that reads none of its replies, and environments whose replies are large."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from ludus import ToolEnvironment, tool

OBSERVATION_BYTES = 1_000_000


class Large(ToolEnvironment):
    """Every observation is a megabyte. Answers on the event loop."""

    def reset(self, *, seed: int | None = None) -> str:
        self.looks = 0
        return "Ready."

    @tool
    def look(self) -> str:
        """Look around."""
        self.looks += 1
        return f"{self.looks} " + "x" * OBSERVATION_BYTES


class LargeInThreads(Large):
    """The same, stepped in threads."""

    blocking = True


class SilentClient:
    """Sends as much as the server takes, and never reads."""

    def __init__(self, url: str) -> None:
        port = urlsplit(url).port or 0
        self._host = f"127.0.0.1:{port}"
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._unsent = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def upgrade(self, path: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: {self._host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        )
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        reply = b""
        while b"\r\n\r\n" not in reply:
            reply += self._socket.recv(4096)
        assert b" 101 " in reply, reply

    def send_frames(self, messages: Sequence[bytes]) -> None:
        """Masked text frames; with a mask of zeros the payload stays as it is."""
        heads = (bytes((0x81, 0x80 | len(message), 0, 0, 0, 0)) for message in messages)
        self._send(b"".join(head + message for head, message in zip(heads, messages, strict=True)))

    def send_posts(self, path: str, body: bytes, count: int) -> None:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._send((head.encode() + body) * count)

    def send_rest(self) -> None:
        """What the server would not take before."""
        self._send(b"")

    def _send(self, data: bytes) -> None:
        self._unsent += data
        self._socket.setblocking(False)
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""  # The server has closed the connection.


def resident_mib(pid: int) -> float:
    """Memory of a process and of all its children."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    own = next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), 0.0)
    return own + sum(resident_mib(int(child)) for child in children)
