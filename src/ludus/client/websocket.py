"""A WebSocket client for an environment server: one request, one reply.

When the connection breaks, the client reconnects to the same session if the server supports that (a
Ludus server says so in its handshake), and otherwise raises `SessionLost`. It never opens a new
session silently, and never takes the reply to another request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TypedDict
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

from ludus.client.server_http import is_local_server, status_error, unreachable_error
from ludus.data.tool_schema import JsonObject
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

_ERROR_CLASSES: dict[str, type[WireError]] = {
    "VALIDATION_ERROR": InvalidAction,
    "EXECUTION_ERROR": ExecutionFailed,
    "CAPACITY_REACHED": CapacityReached,
    "FACTORY_ERROR": FactoryFailed,
}
_SESSION_ENDING_CODES = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
_REFUSED_GRACE_S = 3.0
"""Time after which a refused connection means that the server is gone, and its sessions with it."""


class ConnectionSettings(TypedDict, total=False):
    """The keyword arguments of `WebSocketClient`."""

    token: str | None
    headers: Mapping[str, str] | None
    connect_timeout: float
    message_timeout: float
    resume_timeout: float
    max_message_mb: float


class WebSocketClient:
    """A session on a server, which survives a broken connection if the server supports it."""

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
        self.headers = dict(headers or {})
        if token:
            self.headers["Authorization"] = f"Bearer {token}"
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
            try:
                self._connection = await self._connect(self._url)
            except (InvalidMessage, EOFError, ConnectionResetError):
                # It broke during the handshake.
                await asyncio.sleep(0.1)
                self._connection = await self._connect(self._url)
        except TimeoutError:
            raise ConnectFailed(
                f"{self.base_url} did not answer within {self._connect_timeout:g} s."
            ) from None
        except InvalidStatus as error:
            raise status_error(self.base_url, error.response.status_code) from None
        except (InvalidURI, InvalidHandshake) as error:
            raise ConnectFailed(f"{self.base_url} is not an environment server: {error}") from None
        except OSError as error:
            raise unreachable_error(self.base_url, error) from None
        assert self._connection.response is not None
        self._session_id = self._connection.response.headers.get(SESSION_HEADER)

    @property
    def connection(self) -> ClientConnection | None:
        """The connection of the library websockets; None before `open` and after `close`."""
        return self._connection

    @property
    def is_ludus_server(self) -> bool:
        """Whether it is a Ludus server, which can resume the session."""
        return self._session_id is not None

    async def request(self, frame: JsonObject) -> JsonObject:
        """Send a frame and return the data of its reply; raises the error of an error frame."""
        async with self._request_lock:
            if self._closed_reason is not None or self._connection is None:
                raise SessionLost(self._closed_reason or "The session is not open.")
            text = to_json(frame).decode()
            self._requests_sent += 1
            try:
                reply = await self._exchange(text)
            except TimeoutError:
                self._abort("A request timed out; whether it was executed is unknown.")
                raise RequestTimeout(
                    f"{self.base_url} did not answer within {self._message_timeout:g} s; "
                    "the session is closed."
                ) from None
            except BaseException as error:
                if not isinstance(error, SessionLost):
                    self._abort("A request was cancelled before its reply arrived.")
                raise
            return self._unwrap_reply(reply)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        self._closed_reason = self._closed_reason or "The session was closed."
        if connection is None:
            return
        try:
            async with asyncio.timeout(2.0):
                await connection.send('{"type":"close"}')
                await connection.close()
        except (ConnectionClosed, OSError, TimeoutError):
            connection.transport.abort()

    async def _exchange(self, text: str) -> str:
        """Send a request and return its reply, with a new connection if one breaks."""
        arrived = False
        while True:
            assert self._connection is not None
            try:
                # Each connection gets the whole time; reconnecting has a separate timeout.
                async with asyncio.timeout(self._message_timeout):
                    if not arrived:
                        # A server that refuses a session sends the reason and closes the
                        # connection, perhaps before this is sent: the reason can still be read.
                        with suppress(ConnectionClosed):
                            await self._connection.send(text)
                    reply = await self._connection.recv()
                self._replies_received += 1
                return reply if isinstance(reply, str) else reply.decode()
            except (ConnectionClosed, ConnectionError) as error:
                arrived = await self._resume(error)

    async def _resume(self, error: Exception) -> bool:
        """Reconnect to the session. Returns whether the server has received the request."""
        if isinstance(error, ConnectionClosed) and error.rcvd and error.rcvd.code == 1009:
            self._closed_reason = f"The message was too large for the server: {error.rcvd.reason}"
            raise SessionLost(self._closed_reason) from None
        if not self.is_ludus_server:
            self._closed_reason = (
                f"The connection to {self.base_url} broke, and its server cannot resume sessions."
            )
            raise SessionLost(self._closed_reason) from None
        query = urlencode({"session_id": self._session_id, "replies": self._replies_received})
        connection = await self._reconnect(f"{self._url}{'&' if '?' in self._url else '?'}{query}")
        assert connection.response is not None
        requests_received = connection.response.headers.get(REQUESTS_HEADER)
        if requests_received is None and self._replies_received == 0:
            # There was no reply yet, so that a new session loses nothing.
            connection.transport.abort()
            await self.open()
            return False
        if requests_received is None:
            connection.transport.abort()
            self._closed_reason = f"The session at {self.base_url} does not exist any more."
            raise SessionLost(self._closed_reason)
        self._connection = connection
        return int(requests_received) >= self._requests_sent

    async def _reconnect(self, url: str) -> ClientConnection:
        """Connect again, with exponential backoff; raises `SessionLost` when that is hopeless."""
        started = time.monotonic()
        delay = 0.02
        while True:
            try:
                return await self._connect(url)
            except (OSError, InvalidHandshake, TimeoutError, EOFError) as error:
                waited = time.monotonic() - started
                if isinstance(error, InvalidStatus) and error.response.status_code < 500:
                    reason = str(status_error(self.base_url, error.response.status_code))
                elif isinstance(error, ConnectionRefusedError) and waited > _REFUSED_GRACE_S:
                    reason = (
                        f"Cannot connect to {self.base_url} any more: the session ended with its "
                        "server."
                    )
                elif waited > self._resume_timeout:
                    reason = (
                        f"The connection to {self.base_url} broke, and could not be restored "
                        f"within {waited:.0f} s."
                    )
                else:
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, 1.0)
                    continue
            self._closed_reason = reason
            raise SessionLost(reason)

    async def _connect(self, url: str) -> ClientConnection:
        return await open_websocket(
            url,
            additional_headers={**self.headers, RESUME_HEADER: "1"},
            open_timeout=self._connect_timeout,
            max_size=self._max_size,
            compression=None,
            proxy=None if is_local_server(url) else True,
        )

    def _unwrap_reply(self, reply: str) -> JsonObject:
        message = from_json(reply)
        data: JsonObject = message.get("data") or {}
        if message.get("type") != "error":
            return data
        code = str(data.pop("code", "EXECUTION_ERROR"))
        text = str(data.pop("message", "The server reported an error without a message."))
        if code == "VALIDATION_ERROR" and not self.is_ludus_server:
            # OpenEnv's message says only that something is invalid.
            problems = [
                f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg', '')}"
                for each in data.get("errors") or ()
            ]
            text = f"{text}: {'; '.join(problems)}" if problems else text
        if code in _SESSION_ENDING_CODES:
            self._closed_reason = text
        if code == "SESSION_ERROR":
            raise SessionLost(text)
        raise _ERROR_CLASSES.get(code, WireError)(text, code, data)

    def _abort(self, reason: str) -> None:
        """Drop the connection: the next reply on it would belong to the abandoned request."""
        self._closed_reason = reason
        if self._connection is not None:
            self._connection.transport.abort()


def websocket_url(base_url: str) -> str:
    """The URL of the `/ws` endpoint: http becomes ws, https becomes wss, a bare host ws."""
    if "://" not in base_url:
        base_url = f"ws://{base_url}"
    parts = urlsplit(base_url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    path = parts.path.rstrip("/")
    path = path if path.endswith("/ws") else f"{path}/ws"
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))
