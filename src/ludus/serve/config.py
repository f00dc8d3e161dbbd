"""Config of a server."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """The options of `ludus serve`, with their defaults. Times are in seconds."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_sessions: int = 1024
    max_sessions_per_client: int | None = None
    """Sessions per client address. None: no limit while no other client waits."""
    workers: int = 1
    token: str | None = None
    allow_hosts: tuple[str, ...] = ()
    """Accepted Host headers, besides loopback names and `host`. A server that is not bound to
    loopback accepts any host if none is given."""
    allow_origins: tuple[str, ...] = ()
    """Accepted Origin headers, besides the server's own: `https://host`, or `*`."""
    step_timeout: float | None = 300.0
    """Timeout of a reset or a step; the session is closed after it."""
    idle_timeout: float | None = 3600.0
    """Time without a request after which a session is closed."""
    queue_timeout: float = 10.0
    """Time that a client waits for a free session before it is refused."""
    reconnect_timeout: float = 120.0
    """Time that a session is kept for a client that disconnected and can resume it."""
    max_frame: int = 16 * MIB
    """Maximum size of a message, in bytes."""
    ping_interval: float = 20.0
    """Time between pings; a connection whose pong takes longer than that is closed."""
    send_timeout: float = 60.0
    """Time after which a client that reads nothing of a reply is disconnected."""
    shutdown_timeout: float = 30.0
    """Time that running steps get to finish at shutdown."""
