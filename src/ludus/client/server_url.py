"""URLs of an environment server: its WebSocket, and its HTTP routes."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from ludus.protocol.loopback import is_loopback


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
