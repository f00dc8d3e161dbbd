"""URLs and HTTP routes of an environment server, and errors for those that do not answer as one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from ludus.data.tool_schema import JsonObject
from ludus.errors import ConnectFailed
from ludus.protocol.loopback import is_loopback

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from ludus.client.websocket import WebSocketClient


def websocket_url(base_url: str) -> str:
    """The URL of the `/ws` endpoint: http becomes ws, https becomes wss, a bare host ws."""
    if "://" not in base_url:
        base_url = f"ws://{base_url}"
    parts = urlsplit(base_url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    path = parts.path.rstrip("/")
    path = path if path.endswith("/ws") else f"{path}/ws"
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def http_url(base_url: str, path: str) -> str:
    """The URL of an HTTP route of the server."""
    parts = urlsplit(websocket_url(base_url))
    scheme = {"ws": "http", "wss": "https"}[parts.scheme]
    return urlunsplit((scheme, parts.netloc, parts.path.removesuffix("/ws") + path, "", ""))


def is_local_server(url: str) -> bool:
    """Whether the server is on this machine, so that no proxy is used."""
    return is_loopback(urlsplit(url).hostname or "")


def unreachable_error(base_url: str, error: OSError) -> ConnectFailed:
    """The error for an address at which no server accepts connections."""
    # Where a name has several addresses, the error's text lists them all; its number is the reason.
    number = error.errno or 0
    reason = os.strerror(number) if number > 0 else error.strerror or str(error)
    return ConnectFailed(f"Cannot connect to {base_url} ({reason}). Is the server running?")


def status_error(base_url: str, status: int) -> ConnectFailed:
    """The error for an HTTP status with which a server refuses the connection."""
    if status in (401, 403):
        return ConnectFailed(f"{base_url} requires another `token` (HTTP {status}).")
    if status == 421:
        return ConnectFailed(
            f"{base_url} does not accept this host name (HTTP 421). Use 127.0.0.1 or localhost, or "
            "start the server with `allow_hosts`."
        )
    if status >= 500:
        return ConnectFailed(f"{base_url} failed to answer (HTTP {status}). Its log says why.")
    return ConnectFailed(f"{base_url} is not an environment server (HTTP {status}).")


async def fetch_json_object(socket: WebSocketClient, path: str) -> JsonObject:
    """Fetch a JSON object from an HTTP route of the server."""
    reply = await fetch_json_value(socket, path)
    if not isinstance(reply, dict):
        url = http_url(socket.base_url, path)
        raise ConnectFailed(f"{url} did not return a JSON object.")
    return reply


async def fetch_json_value(socket: WebSocketClient, path: str) -> Any:
    """Fetch JSON from an HTTP route of the server."""
    async with _get(socket.base_url, path, socket.headers) as reply:
        if reply.status != 200:
            raise status_error(http_url(socket.base_url, path), reply.status)
        return await reply.json(content_type=None)


async def fetch_status(base_url: str, path: str, headers: Mapping[str, str]) -> int:
    """The status with which an HTTP route of the server answers."""
    async with _get(base_url, path, headers) as reply:
        return reply.status


@asynccontextmanager
async def _get(
    base_url: str, path: str, headers: Mapping[str, str]
) -> AsyncIterator[ClientResponse]:
    import aiohttp

    url = http_url(base_url, path)
    try:
        async with (
            aiohttp.ClientSession(
                headers=headers,
                trust_env=not is_local_server(url),
                timeout=aiohttp.ClientTimeout(total=10.0),
            ) as client,
            client.get(url, allow_redirects=False) as reply,
        ):
            yield reply
    except aiohttp.ClientConnectorError as error:
        raise unreachable_error(base_url, error.os_error) from None
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        why = str(error) or "no answer in 10 s"
        raise ConnectFailed(f"{url} cannot be read: {why}") from None
