"""The fast path of `/ws`: WebSocket frames parsed in C by picows, without ASGI.

uvicorn parses the HTTP request and calls `handle_websocket_upgrade`. Upgrades of `/ws` bypass ASGI:
a message to an environment that never awaits is answered within the callback in which it arrives.
Upgrades for sessions of other workers go to the ASGI app. Refused upgrades are answered
here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

from picows import (
    WSAutoPingStrategy,
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)

# picows has no public API to take over an open connection.
from picows.picows import WSProtocol  # type: ignore[attr-defined]
from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ludus.serve.access import FROM_WORKER_KEY, AccessPolicy
from ludus.serve.ws_endpoint import Disconnected, WsConnection, WsEndpoint

_TEXT = WSMsgType.TEXT
_MAX_QUEUED_MESSAGES = 64
_log = logging.getLogger("ludus.serve")
_log.setLevel(logging.WARNING)


class UpgradingProtocol(HttpToolsProtocol):
    """The HTTP protocol, which hands upgrades of `/ws` over to picows."""

    def __init__(
        self, *args: Any, endpoint: WsEndpoint, access: AccessPolicy, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._endpoint, self._access = endpoint, access
        self._running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if transport.get_extra_info("socket").family == socket.AF_UNIX:
            self.app_state = {**self.app_state, FROM_WORKER_KEY: True}

    def connection_lost(self, exc: Exception | None) -> None:
        self.pipeline.clear()
        if self._running is not None:
            # Of several pipelined requests, uvicorn notifies only the last one, not the one being
            # answered.
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def handle_websocket_upgrade(self) -> None:
        endpoint, headers = self._endpoint, list(self.scope["headers"])
        path, _, query = self.url.partition(b"?")
        scope = {
            "type": "websocket",
            "path": path.decode("latin-1"),
            "query_string": query,
            "headers": headers,
            "state": self.app_state,
        }
        if (refusal := self._access.check(scope)) is not None:
            # Not through ASGI: uvicorn logs an error for every refused upgrade.
            self.transport.write(refusal.to_bytes())
            self.transport.close()
            return
        if (
            path != b"/ws"
            or self.app_state.get(FROM_WORKER_KEY)
            or endpoint.proxy.find_scope_owner(scope) is not None
        ):
            super().handle_websocket_upgrade()
            return
        self.connections.discard(self)
        connection, config = FastWsConnection(scope, endpoint, self.connections), endpoint.config
        # Its arguments have no names.
        protocol = WSProtocol(
            *(None, None, False, connection.upgrade, _log, True, None, True),
            *(config.ping_interval, config.ping_interval, WSAutoPingStrategy.PING_WHEN_IDLE),
            *(True, config.max_frame, None, 2048),
        )
        protocol.connection_made(self.transport)
        _feed_request(protocol, self.url, headers)
        self.transport.set_protocol(protocol)


class FastWsConnection(WSListener, WsConnection):
    """A connection whose frames are parsed by picows."""

    def __init__(self, scope: Scope, endpoint: WsEndpoint, connections: set[Any]) -> None:
        WsConnection.__init__(self, scope)
        self._endpoint = endpoint
        self._connections = connections
        self._incoming: asyncio.Queue[bytes | Disconnected] = asyncio.Queue()
        self._unanswered = 0
        """Number of messages that were queued for `receive` and are not answered yet."""
        self._parts: list[bytes] = []
        self._parts_size = 0
        self._clean = False
        self._queue_full = False
        self._write_paused = False
        self._writable = asyncio.Event()
        self._max_size = endpoint.config.max_frame
        self._transport: WSTransport
        self._task: asyncio.Task[None]

    def upgrade(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        headers = self._endpoint.handshake_headers(self)
        if self.subprotocol:
            headers["Sec-WebSocket-Protocol"] = self.subprotocol
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(headers), self)

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._endpoint.serve(self))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind == _TEXT and frame.fin:
            self._on_message(frame.get_payload_as_bytes())
        elif kind in (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION):
            # A part of a fragmented message, or binary data.
            part = frame.get_payload_as_bytes()
            self._parts.append(part)
            self._parts_size += len(part)
            if self._parts_size > self._max_size:
                transport.send_close(WSCloseCode.MESSAGE_TOO_BIG)
                transport.disconnect()
            elif frame.fin:
                parts, self._parts, self._parts_size = self._parts, [], 0
                self._on_message(b"".join(parts))
        elif kind == WSMsgType.CLOSE:
            code = frame.get_close_code()
            self._clean = code in (WSCloseCode.OK, WSCloseCode.GOING_AWAY)
            transport.send_close(code or WSCloseCode.OK)
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._connections.discard(self)
        self._write_paused = False
        self._writable.set()
        self.direct_handler = None
        self._incoming.put_nowait(Disconnected(clean=self._clean))

    def pause_writing(self) -> None:
        """The client does not read its replies: stop reading requests until it does."""
        self._write_paused = True
        self._writable.clear()
        self._pause_or_resume_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._writable.set()
        self._pause_or_resume_reading()

    def send_user_specific_ping(self, transport: WSTransport) -> None:
        """Ping the client, unless reading is paused: then its pong would not be received."""
        if self._write_paused or self._queue_full:
            notify = transport.notify_user_specific_pong_received
            # Later, because picows starts to wait for the pong after this call has returned.
            asyncio.get_running_loop().call_soon(notify)
        else:
            transport.send_ping()

    def _pause_or_resume_reading(self) -> None:
        wire = self._transport.underlying_transport
        if wire.is_closing():
            return
        if self._write_paused or self._queue_full:
            wire.pause_reading()
        else:
            wire.resume_reading()

    def shutdown(self) -> None:
        """Called by uvicorn at shutdown."""
        self._transport.send_close(WSCloseCode.SERVICE_RESTART)
        self._transport.disconnect()

    async def send(self, text: bytes) -> None:
        if self._write_paused:
            await self._writable.wait()
        if self._transport.is_disconnected:
            raise Disconnected
        self._transport.send(WSMsgType.TEXT, text)

    async def close(self, code: int = 1000) -> None:
        self.stop_reading()
        if not self._transport.is_disconnected:
            self._transport.send_close(WSCloseCode(code))
            self._transport.disconnect()

    def mark_answered(self) -> None:
        self._unanswered -= 1

    async def _read_next(self) -> bytes:
        message = await self._incoming.get()
        if self._queue_full and self._incoming.empty():
            self._queue_full = False
            self._pause_or_resume_reading()
        if isinstance(message, Disconnected):
            # Put back, so that every later read raises too.
            self._incoming.put_nowait(message)
            raise message
        return message

    def _on_message(self, payload: bytes) -> None:
        direct = self.direct_handler
        # Only while no earlier message is being answered, because replies keep the order of the
        # requests, and only while the client reads its replies.
        if direct is not None and not self._unanswered and not self._write_paused:
            reply = direct(payload)
            if reply is not None:
                self._transport.send(_TEXT, reply)
                return
        self._unanswered += 1
        self._incoming.put_nowait(payload)
        if self._incoming.qsize() >= _MAX_QUEUED_MESSAGES and not self._queue_full:
            # The client sends faster than it is answered: let the rest wait on its side.
            self._queue_full = True
            self._pause_or_resume_reading()


def _feed_request(protocol: Any, url: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """Feed the HTTP request to picows, which parses it again."""
    lines = [b"GET " + url + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in headers]
    data = b"\r\n".join(lines) + b"\r\n\r\n"
    while data:
        buffer = protocol.get_buffer(len(data))
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
