"""Environments in this process or on servers, and the preflight check of each.

Close what `resolve_endpoints` returns with `close_endpoints`: containers run until then. A server
reports its environment, and the name to record.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import urlsplit

from ludus.client.endpoint import Endpoint, LocalEndpoint, connect
from ludus.client.server_http import fetch_json_object
from ludus.client.websocket import WebSocketClient
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.environment.mixture import Mixture
from ludus.environment.registry import find_environment, is_remote, is_url
from ludus.environment.source_file import SourceFile, recorded_name
from ludus.errors import (
    CapacityReached,
    ConfigError,
    ConnectFailed,
    ExecutionFailed,
    InvalidAction,
    LudusError,
)
from ludus.rollout.plan import Plan
from ludus.rollout.progress import EpisodeProgress

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

    `base_url` is the server of a single environment. `warn` is called with notes on environments.
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


async def close_endpoints(endpoints: Mapping[str, EnvironmentEndpoint]) -> None:
    """Remove the containers that run for these environments."""
    await asyncio.gather(*(each.endpoint.close() for each in endpoints.values()))


async def _resolve_endpoint(
    spec: str, base_url: str | None, token: str | None, warn: Callable[[str], None]
) -> EnvironmentEndpoint:
    if is_remote(spec):
        endpoint = connect(spec, token=token)
        try:
            name = await fetch_server_name(await endpoint.server_url() or spec, token)
        except BaseException:
            await endpoint.close()
            raise
        return EnvironmentEndpoint(name or spec, endpoint)
    name = recorded_name(spec)
    if base_url is None:
        endpoint = connect(spec)
        if isinstance(endpoint, LocalEndpoint) and endpoint.env_spec.note:
            warn(endpoint.env_spec.note)
    else:
        endpoint = connect(base_url, token=token)
    return EnvironmentEndpoint(name, endpoint, _variant_task(spec))


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
    statuses: MutableMapping[str, EpisodeProgress] | None = None,
) -> dict[str, Sequence[ToolSpec]]:
    """Reset every environment once, so that errors are raised before there is a run folder.

    Returns the tools by spec. `statuses` holds what is waited for meanwhile, for a watchdog.
    """
    statuses = {} if statuses is None else statuses
    tools: dict[str, Sequence[ToolSpec]] = {}
    for spec, endpoint in endpoints.items():
        first_of_groups = range(0, num_episodes, plan.group_size)
        tasks = (plan[index].task for index in first_of_groups if plan.spec_of(index) == spec)
        statuses[spec] = EpisodeProgress(f"The preflight check of {spec}", endpoint.name, "reset")
        tools[spec] = await preflight_tasks(spec, endpoint, list(islice(tasks, PREFLIGHT_TASKS)))
        del statuses[spec]
    return tools


async def preflight_tasks(
    spec: str, endpoint: EnvironmentEndpoint, tasks: Sequence[JsonObject]
) -> Sequence[ToolSpec]:
    """Reset tasks until one succeeds, as a single one may crash by itself; raise if none does.

    Returns the tools of the session, or none if the server has no free one.
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


async def fetch_server_name(url: str, token: str | None = None) -> str | None:
    """The name that a server gives its environment; None if it gives none."""
    with suppress(ConnectFailed):
        name = (await fetch_json_object(WebSocketClient(url, token=token), "/metadata")).get("name")
        return name if isinstance(name, str) and name else None
    return None
