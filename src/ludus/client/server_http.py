"""HTTP routes of an environment server beside its WebSocket, and what its refusals mean."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from ludus.data.tool_schema import JsonObject
from ludus.errors import ConnectFailed
from ludus.protocol.loopback import is_loopback

if TYPE_CHECKING:
    from ludus.client.websocket import WebSocketClient


def http_url(base_url: str, path: str) -> str:
    """The URL of an HTTP route of the server."""
    parts = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    root = parts.path.rstrip("/").removesuffix("/ws")
    return urlunsplit((scheme, parts.netloc, root + path, "", ""))


def is_local_server(url: str) -> bool:
    """Whether the server is on this machine, so that no proxy is used."""
    return is_loopback(urlsplit(url).hostname or "")


def unreachable_error(base_url: str, error: OSError) -> ConnectFailed:
    """The error for an address at which no server accepts HTTP connections."""
    # The error of a name with several addresses lists them all, so the reason is taken from errno.
    number = error.errno or 0
    reason = os.strerror(number) if number > 0 else error.strerror or str(error)
    return ConnectFailed(f"Cannot connect to {base_url} ({reason}). Is the server running?")


def status_error(base_url: str, status: int) -> ConnectFailed:
    """The error for an HTTP status with which a server refuses the connection."""
    if status == 401:
        return ConnectFailed(f"{base_url} requires another `token` (HTTP 401).")
    if status == 403:
        return ConnectFailed(
            f"{base_url} requires another `token`, or is not an environment server (HTTP 403)."
        )
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
    import aiohttp

    url = http_url(socket.base_url, path)
    try:
        async with (
            aiohttp.ClientSession(
                headers=socket.headers,
                trust_env=not is_local_server(url),
                timeout=aiohttp.ClientTimeout(total=10.0),
            ) as client,
            client.get(url, allow_redirects=False) as reply,
        ):
            if reply.status != 200:
                raise status_error(url, reply.status)
            value = await reply.json(content_type=None)
            if not isinstance(value, dict):
                raise ConnectFailed(f"{url} did not return a JSON object.")
            return value
    except aiohttp.ClientConnectorError as error:
        raise unreachable_error(socket.base_url, error.os_error) from None
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        why = str(error) or "no answer in 10 s"
        raise ConnectFailed(f"{url} cannot be read: {why}") from None
