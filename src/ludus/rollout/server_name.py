"""Check which environment a server serves, and choose the name under which it is recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ludus.client.server_http import fetch_json_value
from ludus.client.websocket import WebSocketClient
from ludus.environment.registry import registered_environments
from ludus.errors import ConfigError, ConnectFailed

_SUFFIXES = ("env", "environment", "server")


async def fetch_server_names(url: str, token: str | None = None) -> list[str]:
    """The names of a server's environment, the one of `/metadata` first; empty where it has none.

    OpenEnv's servers have two names, that of the class and one that the author chose:
    `ReasoningGymEnvironment` and `reasoning_gym_env`.
    """
    socket = WebSocketClient(url, token=token)
    names: list[str] = []
    for path in ("/metadata", "/list_environments"):
        try:
            reply = await fetch_json_value(socket, path)
        except ConnectFailed:
            continue
        value = reply.get("name") if isinstance(reply, dict) else reply
        values = value if isinstance(value, list) else [value]
        names += [name for name in values if isinstance(name, str) and name and name not in names]
    return names


def choose_recorded_name(
    spec: str,
    base_url: str,
    server_names: Sequence[str],
    *,
    has_variants: bool,
    warn: Callable[[str], None],
) -> str:
    """The name under which episodes on a server are recorded, when `spec` was asked for.

    Raises `ConfigError` where the server serves another environment that is registered here. A
    server name that is unknown here may be another name of the same environment: it is recorded,
    with a warning. `has_variants` says that `reset` can select the variant of the spec.
    """
    if not server_names:
        return spec
    same = next(
        (name for name in server_names if _server_name_keys(name) & _server_name_keys(spec)), None
    )
    if same is None:
        known = {_normalize_name(name) for name in registered_environments()}
        if other := next((name for name in server_names if _server_name_keys(name) & known), None):
            raise _mismatch_error(base_url, other, spec)
        warn(
            f"{base_url} serves {server_names[0]!r}, not {spec!r}: "
            f"the episodes are recorded as {server_names[0]!r}."
        )
        return server_names[0]
    variant, server_variant = spec.partition(":")[2], same.partition(":")[2]
    if variant and server_variant and variant != server_variant and not has_variants:
        raise _mismatch_error(base_url, same, spec)
    return same if server_variant and not variant else spec


def _mismatch_error(base_url: str, name: str, spec: str) -> ConfigError:
    return ConfigError(
        f"{base_url} serves {name!r}, not {spec!r}. "
        f"Use {name!r} as the environment, or the URL of a server of {spec!r}."
    )


def _server_name_keys(name: str) -> set[str]:
    """Normalized forms of a name, by which the name of a server is matched.

    `name` of `name:variant`, `Class` of `package.module:Class`.
    """
    base, _, rest = name.partition(":")
    return (
        {_normalize_name(base), _normalize_name(rest)}
        if rest[:1].isupper()
        else {_normalize_name(base)}
    )


def _normalize_name(name: str) -> str:
    """`somebody/reasoning-gym`, `ReasoningGymEnvironment` -> `reasoninggym`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name.rpartition("/")[2])
    words = re.findall("[a-z0-9]+", spaced.lower())
    while len(words) > 1 and words[-1] in _SUFFIXES:
        words.pop()
    return "".join(words)
