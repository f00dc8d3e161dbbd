"""The environments of a run: in this process or on servers, tried first, with a pool of sessions.

Close what `resolve_endpoints` returns with `close_endpoints`: containers run until then. A server
reports its environment, and the name to record.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections import deque
from collections.abc import (
    Callable,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import urlsplit

from ludus.client.endpoint import Endpoint, LocalEndpoint, connect
from ludus.client.session import Session
from ludus.client.websocket import WebSocketClient, fetch_json_object
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
    SessionError,
)
from ludus.rollout.plan import Plan
from ludus.rollout.progress import EpisodeProgress

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0
CAPACITY_RETRY_S = 30.0
"""Time after which a full server is asked for another session again."""
OUTAGE_RESET_S = 30.0
"""Time without a failed connection after which the next one begins a new outage."""


class SessionPool:
    """The sessions of one environment."""

    def __init__(self, endpoint: Endpoint, *, reconnect_timeout: float = 120.0) -> None:
        self.endpoint = endpoint
        self.reconnect_timeout = reconnect_timeout
        self.unreachable_since: float | None = None
        """Since when the server has not answered, while it does not."""
        self._last_failure_at = 0.0
        self._idle: deque[Session] = deque()
        self._num_open = 0
        self._num_opening = 0
        self._capacity: int | None = None
        """Maximum number of sessions, once the server has refused another one."""
        self._refused_at = 0.0
        self._released = asyncio.Event()

    async def acquire(self, *, open_timeout: float | None = None) -> Session:
        """An open session for one episode; return it with `release` or `discard`.

        `open_timeout` is for opening a session: waiting for one that is in use has no limit.
        """
        delay = MIN_BACKOFF_S
        while True:
            if self._idle:
                return self._idle.pop()
            requested_at = time.monotonic()
            if requested_at - self._refused_at > CAPACITY_RETRY_S:
                self._capacity = None
            limit = self.endpoint.max_sessions
            if (self._capacity is not None and self._num_open >= self._capacity) or (
                limit is not None and self._num_open + self._num_opening >= limit
            ):
                self._released.clear()
                await self._released.wait()
                continue
            try:
                async with asyncio.timeout(open_timeout):
                    return await self._open_session()
            except (CapacityReached, ConnectFailed) as error:
                if not await self._back_off(error, requested_at, delay):
                    raise
                delay = min(2 * delay, MAX_BACKOFF_S)

    def release(self, session: Session) -> None:
        """Return a session that the next episode may use."""
        self._idle.append(session)
        self.unreachable_since = None
        self._released.set()

    async def discard(self, session: Session) -> None:
        """Close a session whose state is unknown."""
        self._num_open -= 1
        self._released.set()
        await _close_quietly(session)

    async def close_idle(self) -> None:
        """Close all idle sessions."""
        idle = list(self._idle)
        self._idle.clear()
        await asyncio.gather(*(self.discard(session) for session in idle))

    async def _open_session(self) -> Session:
        session = self.endpoint.session()
        self._num_opening += 1
        try:
            await session.open()
            # A server reports only in its first reply whether it has accepted the session.
            with suppress(ExecutionFailed):  # Some have no state before the first reset.
                await session.state()
        except BaseException:
            self._released.set()
            await _close_quietly(session)
            raise
        finally:
            self._num_opening -= 1
        self._num_open += 1
        self.unreachable_since = None
        return session

    async def _back_off(self, error: SessionError, requested_at: float, delay: float) -> bool:
        """Wait before the next try; False once the server was unreachable for too long.

        The time counts for the whole pool: episodes that wait do not each wait in full.
        """
        now = time.monotonic()
        if isinstance(error, CapacityReached) and self._num_open:
            self._capacity, self._refused_at = self._num_open, now
            return True
        if self.unreachable_since is None or requested_at - self._last_failure_at > OUTAGE_RESET_S:
            self.unreachable_since = now
        self._last_failure_at = now
        if now - self.unreachable_since > self.reconnect_timeout:
            return False
        await asyncio.sleep(delay)
        return True


async def _close_quietly(session: Session) -> None:
    with suppress(SessionError, OSError, TimeoutError):
        async with asyncio.timeout(10.0):
            await session.close()


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
    """Raise unless one of the tasks can be reset there: a single task may crash by itself.

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
