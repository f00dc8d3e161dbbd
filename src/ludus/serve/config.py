"""How a server is run."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Everything that `ludus serve` lets you set, with its default."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_sessions: int = 1024
    max_sessions_per_client: int | None = None
    """Sessions that one client may hold. None: as many as are free while no other client waits."""
    workers: int = 1
    token: str | None = None
    allow_hosts: tuple[str, ...] = ()
    """Host names that the server answers to. Loopback names and `host` always belong to them; a
    server that is not bound to loopback answers to any name if none is given here."""
    allow_origins: tuple[str, ...] = ()
    """Origins of web pages that may use the server, beside its own: `https://host`, or `*`."""
    step_timeout: float | None = 300.0
    """Seconds that a reset or a step may take before its session is given up."""
    idle_timeout: float | None = 3600.0
    """Seconds without a request after which a session is closed."""
    queue_timeout: float = 10.0
    """Seconds that a newcomer waits for a free session before it is turned away."""
    grace: float = 120.0
    """Seconds that a session waits for a client whose line dropped, if that client can resume."""
    max_frame: int = 16 * MIB
    """Bytes that one message may have."""
    ping_interval: float = 20.0
    """Seconds between pings; a socket that does not answer in as many is half-open: it is freed."""
    send_timeout: float = 60.0
    """Seconds in which a client must take at least some of a reply; else it is disconnected."""
    shutdown_timeout: float = 30.0
    """Seconds that running steps get to finish when the server is told to stop."""
