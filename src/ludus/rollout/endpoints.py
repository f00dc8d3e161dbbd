"""Resolve the environments of a run to endpoints, in this process or on servers, and try them.

Use `open_endpoints`, or close what `resolve_endpoints` returns with `close_endpoints`: containers
run until then. A server says which environment it serves, and under which name that is recorded.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import (
    AsyncIterator,
    Callable,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import urlsplit

from ludus.client.endpoint import Endpoint, LocalEndpoint, connect
from ludus.client.server_http import fetch_json_value
from ludus.client.websocket import WebSocketClient
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.environment.mixture import Mixture
from ludus.environment.registry import find_environment, is_remote, is_url, registered_environments
from ludus.environment.source_file import SourceFile, recorded_name
from ludus.errors import (
    CapacityReached,
    ConfigError,
    ConnectFailed,
    ExecutionFailed,
    InvalidAction,
    LudusError,
)
from ludus.rollout.monitoring import EpisodeStatus
from ludus.rollout.plan import Plan

PREFLIGHT_TIMEOUT_S = 300.0
PREFLIGHT_TASKS = 3
"""Tasks of an environment whose reset has to crash before the run is refused."""


@dataclass(frozen=True)
class EnvironmentEndpoint:
    """One environment of a run."""

    name: str
    """The name that episodes record."""
    endpoint: Endpoint
    variant_task: JsonObject = field(default_factory=dict)
    """Arguments of `reset` that select the variant."""


async def resolve_endpoints(
    mixture: Mixture,
    *,
    base_url: str | None = None,
    token: str | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> dict[str, EnvironmentEndpoint]:
    """Resolve every environment of a mixture, by spec.

    `base_url` is the server of a single environment. `warn` is called where it serves another
    environment than was asked for, under whose name the episodes are then recorded.
    """
    if base_url is not None and len(mixture.specs) > 1:
        raise ConfigError(f"`base_url` is for one environment, not for the mixture {mixture}.")
    if base_url is not None and not is_url(base_url):
        raise ConfigError(
            f"`base_url` must be a URL such as http://localhost:8000, got {base_url!r}."
        )
    for url in (base_url, *mixture.specs):
        if url is not None and is_url(url) and "@" in urlsplit(url).netloc:
            raise ConfigError(
                "A URL must not contain a user name or a password, because it is recorded. "
                "Use `token`."
            )
    endpoints: dict[str, EnvironmentEndpoint] = {}
    try:
        for spec in mixture.specs:
            endpoints[spec] = await _resolve_endpoint(spec, base_url, token, warn)
    except BaseException:
        await close_endpoints(endpoints)
        raise
    return endpoints


@asynccontextmanager
async def open_endpoints(
    mixture: Mixture,
    *,
    base_url: str | None = None,
    token: str | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> AsyncIterator[dict[str, EnvironmentEndpoint]]:
    """`resolve_endpoints` for the time of a block."""
    endpoints = await resolve_endpoints(mixture, base_url=base_url, token=token, warn=warn)
    try:
        yield endpoints
    finally:
        await close_endpoints(endpoints)


async def close_endpoints(endpoints: Mapping[str, EnvironmentEndpoint]) -> None:
    """Remove the containers that run for these environments."""
    await asyncio.gather(*(each.endpoint.close() for each in endpoints.values()))


async def _resolve_endpoint(
    spec: str, base_url: str | None, token: str | None, warn: Callable[[str], None]
) -> EnvironmentEndpoint:
    if is_remote(spec):
        endpoint = connect(spec, token=token)
        try:
            url = await endpoint.server_url()
            assert url is not None
            names = await fetch_server_names(url, token)
        except BaseException:
            await endpoint.close()
            raise
        return EnvironmentEndpoint(names[0] if names else spec, endpoint)
    if base_url is None:
        endpoint = connect(spec)
        if isinstance(endpoint, LocalEndpoint) and endpoint.env_spec.note:
            warn(endpoint.env_spec.note)
        return EnvironmentEndpoint(recorded_name(spec), endpoint, _variant_task(spec))
    variant_task = _variant_task(spec)
    name = choose_recorded_name(
        recorded_name(spec),
        base_url,
        await fetch_server_names(base_url, token),
        has_variants=bool(variant_task),
        warn=warn,
    )
    return EnvironmentEndpoint(name, connect(base_url, token=token), variant_task)


def _variant_task(spec: str) -> JsonObject:
    if SourceFile.parse(spec) is not None:
        with suppress(LudusError):
            # Registers the file under its recorded name, by which the oracle looks it up.
            find_environment(spec)
        return {}
    name, _, variant = spec.partition(":")
    if not variant:
        return {}
    try:
        # Only the class is needed: the server may have variants that are not installed here.
        cls = find_environment(name).cls
    except LudusError:
        return {}
    return dict(cls.variant_task(variant)) if hasattr(cls, "variant_task") else {}


async def preflight_endpoints(
    plan: Plan,
    endpoints: Mapping[str, EnvironmentEndpoint],
    num_episodes: int,
    statuses: MutableMapping[str, EpisodeStatus] | None = None,
) -> dict[str, Sequence[ToolSpec]]:
    """Reset every environment once, so that errors are raised before there is a run folder.

    Returns the tools by spec. `statuses` holds what is waited for meanwhile, for a watchdog.
    """
    statuses = {} if statuses is None else statuses
    tools: dict[str, Sequence[ToolSpec]] = {}
    for spec, endpoint in endpoints.items():
        first_of_groups = range(0, num_episodes, plan.group_size)
        tasks = (plan[index].task for index in first_of_groups if plan.spec_of(index) == spec)
        statuses[spec] = EpisodeStatus(f"The preflight check of {spec}", endpoint.name, "reset")
        tools[spec] = await preflight_tasks(spec, endpoint, list(islice(tasks, PREFLIGHT_TASKS)))
        del statuses[spec]
    return tools


async def preflight_tasks(
    spec: str, endpoint: EnvironmentEndpoint, tasks: Sequence[JsonObject]
) -> Sequence[ToolSpec]:
    """Raise unless one of the tasks can be reset there: one alone may crash for its own reasons.

    Returns the tools of the session, or none where the server has no free one.
    """
    crash: ExecutionFailed | None = None
    for task in tasks:
        try:
            async with asyncio.timeout(PREFLIGHT_TIMEOUT_S), endpoint.endpoint.session() as session:
                await session.reset(**task)
            return session.tools
        except InvalidAction as error:
            raise ConfigError(str(error)) from None
        except ExecutionFailed as error:
            crash = error
        except TimeoutError:
            raise ConfigError(
                f"The reset of {spec} has not returned after {PREFLIGHT_TIMEOUT_S:g} s."
            ) from None
        except CapacityReached:
            return ()  # Other clients use the server: the run will wait for a free session.
    if crash is not None:
        raise ConfigError(f"The reset of {spec} failed: {crash}")
    return ()


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
