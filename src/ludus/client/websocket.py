"""One WebSocket to an environment server: a request out, its reply in.

After a dropped line the same session is taken up again where the server can do that (a Ludus
server says so when the socket opens); otherwise `SessionLost` is raised. A new session is never
opened behind the caller's back, and a reply never answers another request.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from pydantic_core import from_json, to_json
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
    InvalidURI,
)

from ludus.errors import (
    CapacityReached,
    ConnectFailed,
    ExecutionFailed,
    FactoryFailed,
    InvalidAction,
    RequestTimeout,
    SessionLost,
    WireError,
)
from ludus.protocol.frames import REQUESTS_HEADER, RESUME_HEADER, SESSION_HEADER
from ludus.protocol.loopback import is_loopback

_ERROR_CLASSES: dict[str, type[WireError]] = {
    "VALIDATION_ERROR": InvalidAction,
    "EXECUTION_ERROR": ExecutionFailed,
    "CAPACITY_REACHED": CapacityReached,
    "FACTORY_ERROR": FactoryFailed,
}
_SESSION_ENDING_CODES = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
_REFUSED_GRACE_S = 3.0
"""Seconds after which a port that refuses means that the server is gone, and its sessions."""


def websocket_url(base_url: str) -> str:
    """http becomes ws, https wss, a bare host ws; then /ws."""
    if "://" not in base_url:
        base_url = f"ws://{base_url}"
    parts = urlsplit(base_url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    path = parts.path.rstrip("/")
    path = path if path.endswith("/ws") else f"{path}/ws"
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def http_url(base_url: str, path: str) -> str:
    """The address of an HTTP route beside the socket."""
    parts = urlsplit(websocket_url(base_url))
    scheme = {"ws": "http", "wss": "https"}[parts.scheme]
    return urlunsplit((scheme, parts.netloc, parts.path.removesuffix("/ws") + path, "", ""))


def is_local(url: str) -> bool:
    """Whether the server is on this machine; no proxy then stands between us and it."""
    return is_loopback(urlsplit(url).hostname or "")


class WebSocketClient:
    """A connection that survives being cut, or says that it did not."""

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        connect_timeout: float = 10.0,
        message_timeout: float = 60.0,
        resume_timeout: float = 60.0,
        max_message_mb: float = 100.0,
    ) -> None:
        self.base_url = base_url
        self.headers = auth_headers(headers, token)
        self._url = websocket_url(base_url)
        self._connect_timeout = connect_timeout
        self._message_timeout = message_timeout
        self._resume_timeout = resume_timeout
        self._max_size = int(max_message_mb * 1024 * 1024)
        self._connection: ClientConnection | None = None
        self._session_id: str | None = None
        self._requests_sent = 0
        self._replies_received = 0
        self._closed_reason: str | None = None
        self._request_lock = asyncio.Lock()

    async def open(self) -> None:
        try:
            self._connection = await self._connect_with_retries(self._url, tries=3)
        except TimeoutError:
            raise ConnectFailed(
                f"{self.base_url} did not answer within {self._connect_timeout:g} s."
            ) from None
        except InvalidStatus as error:
            raise status_error(self.base_url, error.response.status_code) from None
        except (InvalidURI, InvalidHandshake) as error:
            raise ConnectFailed(f"{self.base_url} is no environment server: {error}") from None
        except OSError as error:
            raise unreachable_error(self.base_url, error) from None
        assert self._connection.response is not None
        self._session_id = self._connection.response.headers.get(SESSION_HEADER)

    async def request(self, frame: Mapping[str, Any]) -> dict[str, Any]:
        """Send a frame and return the data of its reply; an error frame is raised."""
        async with self._request_lock:
            if self._closed_reason is not None or self._connection is None:
                raise SessionLost(self._closed_reason or "The session is not open.")
            text = to_json(frame).decode()
            self._requests_sent += 1
            try:
                reply = await self._exchange(text)
            except TimeoutError:
                self._abort("A request was not answered in time; what it did is unknown.")
                raise RequestTimeout(
                    f"{self.base_url} did not answer within {self._message_timeout:g} s; "
                    "the session is closed."
                ) from None
            except BaseException as error:
                if not isinstance(error, SessionLost):
                    self._abort("A request was abandoned before its reply came.")
                raise
            return self._unwrap_reply(reply)

    async def close(self) -> None:
        line, self._connection = self._connection, None
        self._closed_reason = self._closed_reason or "The session was closed."
        if line is None:
            return
        try:
            async with asyncio.timeout(2.0):
                await line.send('{"type":"close"}')
                await line.close()
        except (ConnectionClosed, OSError, TimeoutError):
            line.transport.abort()

    async def _exchange(self, text: str) -> str:
        """One request and its reply, over as many lines as that takes."""
        arrived = False
        while True:
            try:
                # Each line gets the whole time: coming back has a limit of its own.
                async with asyncio.timeout(self._message_timeout):
                    reply = await self._send_and_receive(text, arrived=arrived)
                self._replies_received += 1
                return reply
            except (ConnectionClosed, ConnectionError) as error:
                arrived = await self._resume(error)

    async def _send_and_receive(self, text: str, *, arrived: bool) -> str:
        assert self._connection is not None
        if not arrived:
            # A server that refuses a session says why and hangs up, perhaps before this is sent:
            # then the word to read is here already.
            with suppress(ConnectionClosed):
                await self._connection.send(text)
        reply = await self._connection.recv()
        return reply if isinstance(reply, str) else reply.decode()

    async def _resume(self, error: Exception) -> bool:
        """Come back to the same session; tells whether the request has arrived there already."""
        if isinstance(error, ConnectionClosed) and error.rcvd and error.rcvd.code == 1009:
            self._closed_reason = f"The message was too large for the server: {error.rcvd.reason}"
            raise SessionLost(self._closed_reason) from None
        if self._session_id is None:
            self._closed_reason = (
                f"The connection to {self.base_url} broke, and its server cannot resume."
            )
            raise SessionLost(self._closed_reason) from None
        query = urlencode({"session_id": self._session_id, "replies": self._replies_received})
        line = await self._reconnect(f"{self._url}{'&' if '?' in self._url else '?'}{query}")
        assert line.response is not None
        arrived = line.response.headers.get(REQUESTS_HEADER)
        if arrived is None and self._replies_received == 0:
            # Nothing has been answered yet, so nothing can be lost: begin afresh.
            line.transport.abort()
            await self.open()
            return False
        if arrived is None:
            line.transport.abort()
            self._closed_reason = (
                f"The session at {self.base_url} is gone: the server no longer knows it."
            )
            raise SessionLost(self._closed_reason)
        self._connection = line
        return int(arrived) >= self._requests_sent

    async def _reconnect(self, url: str) -> ClientConnection:
        """Dial until somebody answers or the time is up."""
        began = time.monotonic()
        pause = 0.02
        while True:
            try:
                return await self._connect(url)
            except (OSError, InvalidHandshake, TimeoutError, EOFError) as failed:
                self._closed_reason = self._give_up_reason(failed, time.monotonic() - began)
            if self._closed_reason is not None:
                raise SessionLost(self._closed_reason)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _give_up_reason(self, failed: Exception, waited: float) -> str | None:
        """Why there is no point in dialling again, or None if there is."""
        if isinstance(failed, InvalidStatus) and failed.response.status_code < 500:
            return str(status_error(self.base_url, failed.response.status_code))
        if isinstance(failed, ConnectionRefusedError) and waited > _REFUSED_GRACE_S:
            return f"Nobody answers at {self.base_url} any more: the session went with its server."
        if waited > self._resume_timeout:
            return f"The line to {self.base_url} broke, and {waited:.0f} s did not bring it back."
        return None

    async def _connect_with_retries(self, url: str, *, tries: int) -> ClientConnection:
        """Dial; a line that drops during the handshake is no answer yet."""
        for attempt in range(1, tries):
            try:
                return await self._connect(url)
            except (InvalidMessage, EOFError, ConnectionResetError):
                await asyncio.sleep(0.05 * attempt)
        return await self._connect(url)

    async def _connect(self, url: str) -> ClientConnection:
        return await open_websocket(
            url,
            additional_headers={**self.headers, RESUME_HEADER: "1"},
            open_timeout=self._connect_timeout,
            max_size=self._max_size,
            compression=None,
            proxy=None if is_local(url) else True,
        )

    def _unwrap_reply(self, reply: str) -> dict[str, Any]:
        message = from_json(reply)
        data: dict[str, Any] = message.get("data") or {}
        if message.get("type") != "error":
            return data
        code = str(data.pop("code", "EXECUTION_ERROR"))
        words = str(data.pop("message", "The server reported an error without a message."))
        if code in _SESSION_ENDING_CODES:
            self._closed_reason = words
        if code == "SESSION_ERROR":
            raise SessionLost(words)
        raise _ERROR_CLASSES.get(code, WireError)(words, code, data)

    def _abort(self, why: str) -> None:
        """The next reply on this line would answer the wrong request: never read it."""
        self._closed_reason = why
        if self._connection is not None:
            self._connection.transport.abort()


def auth_headers(headers: Mapping[str, str] | None, token: str | None) -> dict[str, str]:
    return {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}


def unreachable_error(base_url: str, error: OSError) -> ConnectFailed:
    """The error for an address at which no server accepts connections."""
    # Where a name has several addresses, only the number names the reason.
    number = error.errno or 0
    why = os.strerror(number) if number > 0 else error.strerror or str(error)
    return ConnectFailed(f"Nobody answers at {base_url} ({why}). Is the server running?")


def status_error(base_url: str, status: int) -> ConnectFailed:
    if status in (401, 403):
        return ConnectFailed(f"{base_url} wants a token, or another one (HTTP {status}).")
    if status == 421:
        return ConnectFailed(
            f"{base_url} does not answer to that host name (HTTP 421): use 127.0.0.1 or localhost, "
            "or start the server with --allow-host."
        )
    return ConnectFailed(f"{base_url} does not answer as an environment server (HTTP {status}).")
