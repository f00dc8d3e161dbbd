"""Config of a server, and its validation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ludus.data.config_types import check_field_types
from ludus.environment.spec import EnvSpec
from ludus.errors import LudusError
from ludus.protocol.loopback import is_loopback

MIB = 1024 * 1024
_NULL_ORIGIN = "null"


class ServeError(LudusError):
    """The server cannot be started with this config."""


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """The address of a server, and who may use it."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    allow_no_token: bool = False
    """Whether a server that others can reach may run without a token."""
    allow_hosts: tuple[str, ...] = ()
    """Accepted Host headers, besides loopback names and `host`. A server that is not bound to
    loopback accepts any host if none is given."""
    allow_origins: tuple[str, ...] = ()
    """Accepted Origin headers, besides the server's own: `https://host`, or `*`."""
    send_timeout: float = 60.0
    """Time in seconds after which a client that reads nothing of a reply is disconnected."""

    def __post_init__(self) -> None:
        check_field_types(self)

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServeConfig(ListenConfig):
    """The options of `ludus serve`, with their defaults. Times are in seconds."""

    max_sessions: int = 1024
    max_sessions_per_client: int | None = None
    """Sessions per client address. None: no limit while no other client waits."""
    workers: int = 1
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
    shutdown_timeout: float = 30.0
    """Time that running steps get to finish at shutdown."""


def check_listen_config(config: ListenConfig) -> None:
    """Raise `ServeError` for an address or access control that is unsafe or cannot work."""
    if not 0 <= config.port <= 65535:
        raise ServeError(f"`port` must be between 0 and 65535, got {config.port}.")
    if not (is_loopback(config.host) or config.token or config.allow_no_token):
        raise ServeError(
            f"A server on {config.host} needs a token, because others can reach it. Set "
            "LUDUS_TOKEN, `token_file` or `token`, or use 127.0.0.1 as `host`. Where everybody may "
            "use it, set `allow_no_token`."
        )
    for origin in config.allow_origins:
        if not is_valid_origin(origin):
            raise ServeError(
                f"`allow_origins` must be https://HOST or https://HOST:PORT without a path, or *, "
                f"got {origin!r}."
            )


def check_config(env_spec: EnvSpec, config: ServeConfig) -> None:
    """Raise `ServeError` for a config that is unsafe or cannot work."""
    check_listen_config(config)
    concurrent_sessions = config.max_sessions if config.workers == 1 else config.workers
    if not env_spec.concurrent and concurrent_sessions > 1:
        raise ServeError(
            f"{env_spec.id} does not support several instances in one process. Set `max_sessions` "
            "and `workers` to 1."
        )


def split_names(text: str | Iterable[str] | None) -> tuple[str, ...]:
    """The names of hosts or origins; in an environment variable commas or blanks separate them."""
    joined = text if isinstance(text, str) else ",".join(text or ())
    return tuple(joined.replace(",", " ").split())


def is_valid_origin(text: str) -> bool:
    """Whether `allow_origins` may hold this: scheme, host and port, as a browser sends them."""
    if text in ("*", _NULL_ORIGIN):
        return True
    parts = urlsplit(text)
    return bool(parts.scheme and parts.netloc) and text == f"{parts.scheme}://{parts.netloc}"
