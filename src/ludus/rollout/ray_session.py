"""Sessions on the nodes of a Ray cluster, for agents that stay in this process.

Keys, the model's cache, its rate limit and its budget are those of one process, however many nodes
run the environments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

from pydantic import BaseModel

from ludus.client.endpoint import Endpoint, LocalEndpoint, connect
from ludus.client.session import Session
from ludus.data.tool_schema import ToolSpec
from ludus.environment.faults import (
    FaultRecorder,
    LoggedFault,
    capture_faults,
    log_recorded_fault,
)
from ludus.errors import LudusError, SessionLost, describe_in_one_line
from ludus.protocol.frames import action_payload
from ludus.protocol.types import StepResult
from ludus.rollout.endpoints import EnvironmentEndpoint
from ludus.rollout.ray_cluster import (
    JOIN_TIMEOUT_S,
    START_TIMEOUT_S,
    STATUS_ADVICE,
    ActorSetup,
    ActorStart,
    Node,
    import_ray,
    last_line,
    start_actor,
)
from ludus.rollout.workers import wait_for_starts

MAX_CALLS_PER_ACTOR = 1000


class SessionReply(NamedTuple):
    """The result of a call, or its error."""

    value: Any
    error: LudusError | None
    faults: list[LoggedFault]


class SessionActor:
    """Runs on a node, once for each core that is used there: holds sessions, by number."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}
        self._faults = FaultRecorder()
        # For the life of the process, because calls overlap.
        self._capture = ExitStack()
        self._capture.enter_context(capture_faults(self._faults))

    async def open(self, setup: ActorSetup, specs: list[str]) -> ActorStart:
        try:
            setup.apply()
            for spec in specs:
                connect(spec)
        except Exception as error:
            return ActorStart(Node.of_this_process(), describe_in_one_line(error))
        return ActorStart(Node.of_this_process(), None)

    async def open_session(self, number: int, spec: str) -> SessionReply:
        session = self._sessions[number] = connect(spec).session()
        reply = await self._call(session.open())
        return reply._replace(value=(session.tools, session.calls_by_name))

    async def call(self, number: int, method: str, arguments: Mapping[str, Any]) -> SessionReply:
        return await self._call(getattr(self._sessions[number], method)(**arguments))

    async def close_session(self, number: int) -> None:
        if (session := self._sessions.pop(number, None)) is not None:
            await session.close()

    async def _call(self, call: Any) -> SessionReply:
        value, error = None, None
        try:
            value = await call
        except LudusError as raised:
            error = raised
        return SessionReply(value, error, self._faults.take())


@dataclass(slots=True, eq=False)
class _Host:
    actor: Any
    num_sessions: int = 0


@dataclass(slots=True)
class SessionHosts:
    """The actors that hold the sessions of a run. One that is lost is replaced."""

    specs: list[str]
    hosts: list[_Host] = field(default_factory=list)
    numbers: Any = field(default_factory=count)
    starts: set[asyncio.Task[None]] = field(default_factory=set)
    """Starts that go on."""
    start_error: BaseException | None = None
    """Of the last start that failed."""
    closing: bool = False

    async def add_host(self) -> None:
        actor_class = (
            import_ray()
            .remote(SessionActor)
            .options(num_cpus=1, scheduling_strategy="SPREAD", max_concurrency=MAX_CALLS_PER_ACTOR)
        )
        actor, _ = await start_actor(actor_class, self.specs)
        self.hosts.append(_Host(actor))

    async def start(self, count: int) -> None:
        """Start actors; returns when one can hold sessions, or raises `WorkersFailed`."""
        await wait_for_starts(
            [self._start_host() for _ in range(count)],
            start_timeout_s=START_TIMEOUT_S,
            join_timeout_s=JOIN_TIMEOUT_S,
            advice=STATUS_ADVICE,
        )

    def _start_host(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self.add_host())
        self.starts.add(task)
        task.add_done_callback(self._on_started)
        return task

    def _on_started(self, task: asyncio.Task[None]) -> None:
        self.starts.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.start_error = error

    def drop(self, host: _Host) -> None:
        """Use a lost actor no more, and ask for another one."""
        if host in self.hosts and not self.closing:
            self.hosts.remove(host)
            self._start_host()

    async def choose_host(self) -> _Host:
        """The actor with the fewest sessions; waits while there is none."""
        while not self.hosts:
            if not self.starts:
                raise self.start_error or SessionLost("The cluster has no node any more.")
            await asyncio.wait(self.starts, return_when=asyncio.FIRST_COMPLETED)
        return min(self.hosts, key=lambda host: host.num_sessions)

    async def close(self) -> None:
        self.closing = True
        starts = list(self.starts)
        for task in starts:
            task.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        for host in self.hosts:
            import_ray().kill(host.actor)


class RaySession(Session):
    """A session on one of the actors."""

    def __init__(self, hosts: SessionHosts, spec: str) -> None:
        self._hosts = hosts
        self._spec = spec
        self._number = next(hosts.numbers)
        self._host: _Host | None = None

    async def open(self) -> None:
        self._host = await self._hosts.choose_host()
        self._host.num_sessions += 1
        session: tuple[tuple[ToolSpec, ...], bool] = await self._reply(
            self._host.actor.open_session.remote(self._number, self._spec)
        )
        self.tools, self.calls_by_name = session

    async def reset(self, /, **task: Any) -> StepResult[dict[str, Any]]:
        result: StepResult[dict[str, Any]] = await self._call("reset", task)
        return result

    async def step(self, action: Mapping[str, Any] | BaseModel) -> StepResult[dict[str, Any]]:
        payload = {"action": action_payload(action)}
        result: StepResult[dict[str, Any]] = await self._call("step", payload)
        return result

    async def state(self) -> dict[str, Any]:
        state: dict[str, Any] = await self._call("state", {})
        return state

    async def close(self) -> None:
        if self._host is None:
            return
        host, self._host = self._host, None
        host.num_sessions -= 1
        with suppress(import_ray().exceptions.RayError):
            await host.actor.close_session.remote(self._number)

    async def _call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        if self._host is None:
            raise SessionLost("The session is closed; open another.")
        return await self._reply(self._host.actor.call.remote(self._number, method, arguments))

    async def _reply(self, reference: Any) -> Any:
        exceptions = import_ray().exceptions
        try:
            reply: SessionReply = await reference
        except exceptions.RayTaskError as error:
            # The actor lives, and so do its other sessions.
            raise SessionLost(f"The session failed on its node: {last_line(error)}") from error
        except exceptions.RayError as error:
            if self._host is not None:
                self._hosts.drop(self._host)
            raise SessionLost(f"The node of the environment is gone: {last_line(error)}") from error
        for fault in reply.faults:
            log_recorded_fault(fault)
        if reply.error is not None:
            raise reply.error
        return reply.value


class RayEndpoint(Endpoint):
    """Sessions of one environment on a cluster."""

    def __init__(
        self, local: LocalEndpoint, spec: str, hosts: SessionHosts, num_hosts: int
    ) -> None:
        self.spec = spec
        self._hosts = hosts
        if local.max_sessions is not None:
            self.max_sessions = local.max_sessions * num_hosts

    def session(self) -> Session:
        return RaySession(self._hosts, self.spec)


@asynccontextmanager
async def hosted_endpoints(
    endpoints: Mapping[str, EnvironmentEndpoint], num_hosts: int
) -> AsyncIterator[dict[str, EnvironmentEndpoint]]:
    """Endpoints of the same environments, with their sessions on the nodes of a cluster."""
    hosts = SessionHosts(list(endpoints))
    hosted: dict[str, EnvironmentEndpoint] = {}
    for spec, each in endpoints.items():
        assert isinstance(each.endpoint, LocalEndpoint)
        endpoint = RayEndpoint(each.endpoint, spec, hosts, num_hosts)
        hosted[spec] = replace(each, endpoint=endpoint)
    try:
        await hosts.start(num_hosts)
        yield hosted
    finally:
        await hosts.close()
