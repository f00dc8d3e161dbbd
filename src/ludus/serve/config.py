"""Configs of the two servers, of environments and of models, and their validation."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from ludus.data.config import check_field_types
from ludus.environment.spec import EnvSpec
from ludus.errors import LudusError
from ludus.options import Option, expand_path, parse_duration, parse_mebibytes, parse_timeout
from ludus.protocol.loopback import is_loopback

MIB = 1024 * 1024
DEFAULT_SESSIONS = 1024
HOSTS_VARIABLE, ORIGINS_VARIABLE = "LUDUS_ALLOW_HOSTS", "LUDUS_ALLOW_ORIGINS"
"""Environment variables whose names are accepted besides `allow_hosts` and `allow_origins`."""
_NULL_ORIGIN = "null"


class ServeError(LudusError):
    """The server cannot be started with this config."""


def add_names(given: str | Iterable[str] | None, *, variable: str) -> tuple[str, ...]:
    """Combine the given names with those in an environment variable, without duplicates."""
    texts = (given,) if isinstance(given, str) else (given or ())
    names = ",".join((*texts, os.environ.get(variable, ""))).replace(",", " ").split()
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class ListenConfig:
    """The address of a server, and who may use it."""

    host: Annotated[str, Option("Server")] = "127.0.0.1"
    """Address to bind."""
    port: Annotated[int, Option("Server")] = 8000
    """Port to bind; 0 for any free port."""
    token: Annotated[str | None, Option("Server", env_var="LUDUS_TOKEN")] = field(
        default=None, repr=False
    )
    """Bearer token that clients must send. Prefer LUDUS_TOKEN: other users of this machine
    can read --token in the process list."""
    allow_no_token: Annotated[bool, Option("Server", advanced=True)] = False
    """Start without a token on an address that others can reach, as in a container."""
    allow_hosts: Annotated[
        tuple[str, ...],
        Option(
            "Server",
            advanced=True,
            name="allow_host",
            env_var=HOSTS_VARIABLE,
            metavar="NAME",
            default="any, unless --host is loopback",
            combine=partial(add_names, variable=HOSTS_VARIABLE),
        ),
    ] = ()
    """Accepted Host header besides loopback names and `host`: a name, *.domain or *; repeatable."""
    allow_origins: Annotated[
        tuple[str, ...],
        Option(
            "Server",
            hidden=True,
            name="allow_origin",
            env_var=ORIGINS_VARIABLE,
            metavar="ORIGIN",
            default="none",
            combine=partial(add_names, variable=ORIGINS_VARIABLE),
        ),
    ] = ()
    """Accepted Origin header besides the server's own: https://HOST or *; repeatable."""
    send_timeout: Annotated[
        float, Option("Server", hidden=True, metavar="TIME", default="1m", parse=parse_duration)
    ] = 60.0
    """Time after which a client that reads nothing of a reply is disconnected."""

    def __post_init__(self) -> None:
        check_field_types(self)

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True)
class ServeConfig(ListenConfig):
    """The options of `ludus serve`, with their defaults. Times are in seconds."""

    max_sessions: Annotated[
        int | None, Option("Limits", default="1024; fewer if the environment says so")
    ] = None
    """Maximum number of concurrent sessions, over all workers."""
    workers: Annotated[int, Option("Server")] = 1
    """Number of server processes."""
    step_timeout: Annotated[
        float | None,
        Option("Limits", advanced=True, metavar="TIME", default="5m", parse=parse_timeout),
    ] = 300.0
    """Timeout of a reset or a step, after which the session is closed; 0: none."""
    idle_timeout: Annotated[
        float | None,
        Option("Limits", hidden=True, metavar="TIME", default="1h", parse=parse_timeout),
    ] = 3600.0
    """Time without a request after which a session is closed; 0: never."""
    queue_timeout: Annotated[
        float, Option("Limits", hidden=True, metavar="TIME", default="10s", parse=parse_duration)
    ] = 10.0
    """Time that a client waits for a free session before it is refused."""
    reconnect_timeout: Annotated[
        float, Option("Limits", hidden=True, metavar="TIME", default="2m", parse=parse_duration)
    ] = 120.0
    """Time that a session is kept for a client that disconnected and can resume it."""
    max_frame: Annotated[
        int,
        Option("Limits", hidden=True, name="max_frame_mb", default="16", parse=parse_mebibytes),
    ] = 16 * MIB
    """Maximum size of a message, in MiB."""
    ping_interval: float = 20.0
    """Time between pings; a connection whose pong takes longer than that is closed."""
    shutdown_timeout: float = 30.0
    """Time that running steps get to finish at shutdown."""

    @property
    def sessions(self) -> int:
        return DEFAULT_SESSIONS if self.max_sessions is None else self.max_sessions


@dataclass(frozen=True)
class ModelServeConfig(ListenConfig):
    """The options of `ludus serve-model`, with their defaults. Times are in seconds."""

    port: Annotated[int, Option("Server")] = 8001
    """Port to bind; 0 for any free port."""
    served_name: Annotated[
        str | None,
        Option("Server", name="served_model_name", default="the folder's name, or the Hub id"),
    ] = None
    """The model's name in the API."""
    max_queue: Annotated[int, Option("Limits", hidden=True)] = 1024
    """Maximum number of waiting requests, besides running ones; more are refused with 429."""
    max_tokens: Annotated[int, Option("Limits", advanced=True)] = 4096
    """Limit of `max_tokens` in a request, and the default if a request has none."""
    max_choices: int = 128
    """Limit of `n` in a request."""
    max_body: Annotated[
        int,
        Option("Limits", hidden=True, name="max_body_mb", default="16", parse=parse_mebibytes),
    ] = 16 * MIB
    """Maximum size of a request, in MiB."""
    record: Annotated[
        Path | None, Option("Output", metavar="RUN", default="not recorded", parse=expand_path)
    ] = None
    """Run folder in which conversations are recorded as episodes."""
    session_timeout: Annotated[
        float,
        Option("Output", hidden=True, metavar="TIME", default="10m", parse=parse_duration),
    ] = 600.0
    """Time without a call after which a recorded session ends without a reward."""
    shutdown_timeout: float = 30.0
    """Time that running requests get to finish at shutdown."""


def limit_sessions(config: ServeConfig, env_spec: EnvSpec) -> ServeConfig:
    """Set the number of sessions, by default as many as the environment allows."""
    if config.max_sessions is not None:
        return config
    default = (env_spec.max_sessions or DEFAULT_SESSIONS) if env_spec.concurrent else 1
    return replace(config, max_sessions=default)


def check_listen_config(config: ListenConfig) -> None:
    """Raise `ServeError` for an address or access control that is unsafe or cannot work."""
    if not 0 <= config.port <= 65535:
        raise ServeError(f"`port` must be between 0 and 65535, got {config.port}.")
    if not (is_loopback(config.host) or config.token or config.allow_no_token):
        raise ServeError(
            f"A server on {config.host} needs a token, because others can reach it. Set "
            "LUDUS_TOKEN or `token`, or use 127.0.0.1 as `host`. If everybody may "
            "use it, set `allow_no_token`."
        )
    for origin in config.allow_origins:
        if not is_valid_origin(origin):
            raise ServeError(
                f"`allow_origins` must be https://HOST or https://HOST:PORT without a path, or *, "
                f"got {origin!r}."
            )


def check_config(env_spec: EnvSpec, config: ServeConfig) -> None:
    """Raise `ServeError` if an environment server's config is unsafe or cannot work."""
    check_listen_config(config)
    concurrent_sessions = config.sessions if config.workers == 1 else config.workers
    if not env_spec.concurrent and concurrent_sessions > 1:
        raise ServeError(
            f"{env_spec.id} does not support several instances in one process. Set `max_sessions` "
            "and `workers` to 1."
        )


def check_model_config(config: ModelServeConfig) -> None:
    """Raise `ServeError` if a model server's config is unsafe or cannot work."""
    check_listen_config(config)
    limits = {"max_queue": 0, "max_tokens": 1, "max_choices": 1, "max_body": 1}
    for name, least in limits.items():
        if getattr(config, name) < least:
            raise ServeError(f"`{name}` must be at least {least}, got {getattr(config, name)}.")
    if config.session_timeout <= 0:
        raise ServeError(f"`session_timeout` must be positive, got {config.session_timeout}.")


def is_valid_origin(text: str) -> bool:
    """Whether this is an origin as in a header: scheme, host and port."""
    if text in ("*", _NULL_ORIGIN):
        return True
    parts = urlsplit(text)
    return bool(parts.scheme and parts.netloc) and text == f"{parts.scheme}://{parts.netloc}"
