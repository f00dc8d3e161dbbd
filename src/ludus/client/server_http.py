"""Requests to the HTTP routes of an environment server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ludus.client.server_url import http_url, is_local_server, status_error, unreachable_error
from ludus.errors import ConnectFailed

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from ludus.client.websocket import WebSocketClient


async def fetch_json_object(socket: WebSocketClient, path: str) -> dict[str, Any]:
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
