"""A Ray cluster: workers on its cores, and sessions there for agents that stay in this process.

Keys, the model's rate limit and the budget are those of one process, however many nodes run the
environments.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

from pydantic import BaseModel

from ludus import __version__
from ludus.client.endpoint import Endpoint, LocalEndpoint, connect
from ludus.client.session import Session
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.environment.faults import AuthorFault, capture_faults, report_fault
from ludus.errors import (
    ConfigError,
    ConnectFailed,
    LudusError,
    MissingExtra,
    SessionLost,
    WorkersFailed,
    describe_in_one_line,
)
from ludus.protocol.frames import action_payload
from ludus.protocol.types import StepResult
from ludus.rollout.endpoints import EnvironmentEndpoint
from ludus.rollout.process_worker import available_cores
from ludus.rollout.workers import BlockReply, EpisodePlay, Worker, WorkerSource, WorkItem, run_block

LOCAL = "local"
"""The address that starts a cluster on this machine."""
CONNECT_TIMEOUT_S, CLOSE_TIMEOUT_S = 5.0, 5.0
START_TIMEOUT_S = 60.0
"""Seconds in which the first actor of a run has to start."""
START_RETRIES = 10
"""Other nodes that are tried for an actor: the cluster takes a while to notice a lost one."""
MAX_CALLS_PER_ACTOR = 1000
HOST_RETRY_S = 5.0
"""Seconds for which other actors are preferred to one that could not be reached."""
_STATUS_ADVICE = "See `ray status`."
_CODE_ADVICE = (
    "All nodes need the same version of Ludus, and the code of environments and agents: install it "
    "there, or run in a folder that they share."
)


def import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtra.of("ray", "`ray`") from error
    return ray


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A cluster that this process is connected to."""

    address: str

    @property
    def num_cores(self) -> int:
        """Cores of all nodes at the moment."""
        return max(1, int(import_ray().cluster_resources().get("CPU", 0)))


@asynccontextmanager
async def open_cluster(address: str) -> AsyncIterator[RayCluster]:
    """Connect to a cluster for the time of a block.

    A connection that the program has already is used, and left open.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield RayCluster(address)
        return
    check_address(address)
    await asyncio.to_thread(_connect, ray, address)
    try:
        yield RayCluster(address)
    finally:
        await asyncio.to_thread(ray.shutdown)


def check_address(address: str) -> None:
    """Raise if no cluster can be at this address. Ray itself would try for a minute."""
    if address in (LOCAL, "auto"):
        return
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not host or not port.isdigit():
        raise ConfigError(
            f"`ray` must be local, auto or HOST:PORT of the head node, got {address!r}. "
            "Run the command on a machine of the cluster."
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address) from error


def _no_cluster(address: str) -> ConfigError:
    return ConfigError(
        f"`ray`: there is no cluster at {address}. Start one with ray start --head, or use local."
    )


def _connect(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    # Reports of Ray about lost workers, which are pages of its logs and have no option, would tear
    # the progress display. Ours are warnings of one line.
    ray._private.worker.print_to_stdstream = lambda *arguments, **options: None
    options: dict[str, object] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address == LOCAL:
        options |= {"num_cpus": available_cores(), "include_dashboard": False}
    try:
        ray.init(address=address, **options)
    except ConnectionError as error:
        raise _no_cluster(address) from error
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise WorkersFailed(f"`ray`: {' '.join(str(error).split())}") from error
        raise ConfigError(
            f"`ray`: the cluster at {address} has another version of Ray or Python than this "
            f"machine (Ray {ray.__version__}, Python {platform.python_version()}). "
            "Install the same on all of them."
        ) from error


class ActorSetup(NamedTuple):
    """What an actor needs of the process that has started it."""

    version: str
    sys_path: list[str]
    folder: str
    specs: Sequence[str] = ()
    """The environments whose sessions it holds."""
    pickled_work: bytes = b""

    @classmethod
    def of_this_process(cls, **fields: Any) -> ActorSetup:
        return cls(__version__, list(sys.path), os.getcwd(), **fields)  # noqa: PTH109 - sent as text


class Node(NamedTuple):
    """The machine of an actor, and why the actor cannot work there."""

    id: str
    address: str
    problem: str | None


class SessionReply(NamedTuple):
    """The result of a call, or its error."""

    value: Any
    error: LudusError | None
    faults: list[AuthorFault]


class NodeActor:
    """Runs on a node, once for each core that is used there: works on blocks, or holds sessions."""

    def __init__(self, setup: ActorSetup) -> None:
        self._sessions: dict[int, Session] = {}
        self._faults = list[AuthorFault]()
        self._capture, self._captures_faults = ExitStack(), False
        self._setup = setup
        # The same modules and files, as far as the node has them. Ray repeats this on another node.
        sys.path += [path for path in setup.sys_path if path not in sys.path]
        with suppress(OSError):
            os.chdir(setup.folder)

    async def open(self) -> Node:
        """Load what it needs for its work."""
        problem, setup = None, self._setup
        try:
            if setup.version != __version__:
                raise WorkersFailed(f"it has Ludus {__version__}, and this machine {setup.version}")
            for spec in setup.specs:
                connect(spec)
            if setup.pickled_work:
                self._work: EpisodePlay = import_ray().cloudpickle.loads(setup.pickled_work)
                await self._work.open()
        except Exception as error:
            problem = describe_in_one_line(error)
        ray = import_ray()
        node_id = ray.get_runtime_context().get_node_id()
        return Node(node_id, ray.util.get_node_ip_address(), problem)

    async def run(self, items: Sequence[WorkItem]) -> BlockReply:
        return await run_block(self._work, items)

    async def close(self) -> None:
        await self._work.close()

    async def open_session(self, number: int, spec: str) -> SessionReply:
        if not self._captures_faults:
            # For the life of the process, because calls overlap.
            self._captures_faults = True
            self._capture.enter_context(capture_faults(lambda fault: self._faults.append(fault)))
        session = self._sessions[number] = connect(spec).session()
        reply = await self._call(session.open())
        return reply._replace(value=(session.tools, session.calls_by_name))

    async def call(self, number: int, method: str, arguments: Mapping[str, Any]) -> SessionReply:
        return await self._call(getattr(self._sessions[number], method)(**arguments))

    async def close_session(self, number: int) -> None:
        if (session := self._sessions.pop(number, None)) is not None:
            await session.close()

    async def _call(self, call: Awaitable[object]) -> SessionReply:
        value, error = None, None
        try:
            value = await call
        except LudusError as raised:
            error = raised
        faults, self._faults = self._faults, []
        return SessionReply(value, error, faults)


def create_actor(setup: ActorSetup, *, max_calls: int = 1) -> Any:
    """An actor on any core of the cluster, once one is free. Ray moves it from a lost node."""
    options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_restarts": -1}
    actor_class = import_ray().remote(NodeActor).options(**options, max_concurrency=max_calls)
    return actor_class.remote(setup)


async def open_actor(actor: Any) -> Node:
    """Wait until an actor can work; raises `WorkersFailed` if its node cannot run it."""
    try:
        node: Node = await actor.open.options(max_task_retries=START_RETRIES).remote()
    except import_ray().exceptions.RayError as error:
        problem = f"A node of the cluster cannot start a worker: {last_line(error)}"
        raise WorkersFailed(f"{problem}. {_CODE_ADVICE}") from error
    if node.problem is not None:
        problem = node.problem.rstrip(".")
        raise WorkersFailed(
            f"The node {node.address} cannot run a worker: {problem}. {_CODE_ADVICE}"
        )
    return node


def last_line(error: BaseException) -> str:
    """The line of a Ray error that says what happened: the others are a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".")[:300] if lines else type(error).__name__


class RayWorker(Worker):
    """An actor that works on blocks."""

    def __init__(self, actor: Any, node: Node) -> None:
        super().__init__()
        self.node = node
        self._actor = actor
        self._replies: deque[Any] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None

    def send(self, items: Sequence[WorkItem]) -> None:
        self._replies.append(self._actor.run.remote(items))
        self._changed.set()

    async def read_reply(self) -> BlockReply:
        while not self._replies:
            if self._ended:
                raise EOFError
            self._changed.clear()
            await self._changed.wait()
        try:
            reply: BlockReply = await self._replies.popleft()
        except import_ray().exceptions.RayError as error:
            self._error = error
            self.kill()  # It may live on if only the reply was lost.
            raise EOFError from error
        return reply

    async def exit_status(self) -> str:
        return f"{type(self._error).__name__} on the node {self.node.address} ({self.node.id[:8]})"

    async def is_node_lost(self) -> bool:
        # The cluster notices some seconds after the connection was closed. Until then it looks as
        # if the episodes had ended the worker, which costs them nothing the first time.
        nodes = await asyncio.to_thread(import_ray().nodes)
        return not any(node["NodeID"] == self.node.id and node["Alive"] for node in nodes)

    def kill(self) -> None:
        import_ray().kill(self._actor)

    async def end(self) -> None:
        if not self.blocks:
            with suppress(TimeoutError, import_ray().exceptions.RayError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._actor.close.remote()
        self.kill()
        self._ended = True
        self._changed.set()
        if self.reader is not None:
            await self.reader


class RayWorkers(WorkerSource):
    """Starts actors for some work, wherever the cluster has a free core.

    An actor for which there is none waits: it takes the place of a lost node once there is another.
    """

    advice = _STATUS_ADVICE
    block_s = 0.1
    max_block_size = 256
    start_timeout_s = START_TIMEOUT_S

    def __init__(self, work: EpisodePlay) -> None:
        try:
            pickled = import_ray().cloudpickle.dumps(work)
        except Exception as error:
            reason = describe_in_one_line(error)
            raise WorkersFailed(f"`ray`: the agent cannot be sent: {reason}") from error
        self._setup = ActorSetup.of_this_process(pickled_work=pickled)

    async def start_worker(self) -> RayWorker:
        actor = create_actor(self._setup)
        return RayWorker(actor, await open_actor(actor))


@dataclass(slots=True, eq=False)
class SessionHost:
    """An actor that holds sessions."""

    actor: Any
    num_sessions: int = 0
    unreachable_at: float = float("-inf")


_session_numbers = count()


class RaySession(Session):
    """A session on one of the actors."""

    def __init__(self, hosts: Sequence[SessionHost], spec: str) -> None:
        self._hosts = hosts
        self._spec = spec
        self._number = next(_session_numbers)
        self._host: SessionHost | None = None

    async def open(self) -> None:
        """Open it on the actor with the fewest sessions; raises `ConnectFailed` if that is gone."""
        now = time.monotonic()
        self._host = min(
            self._hosts,
            key=lambda host: (now - host.unreachable_at < HOST_RETRY_S, host.num_sessions),
        )
        self._host.num_sessions += 1
        session: tuple[tuple[ToolSpec, ...], bool]
        try:
            session = await self._reply(
                self._host.actor.open_session.remote(self._number, self._spec)
            )
        except SessionLost as error:
            self._host.unreachable_at = now
            raise ConnectFailed(str(error)) from error
        self.tools, self.calls_by_name = session

    async def reset(self, /, **task: Any) -> StepResult[JsonObject]:
        result: StepResult[JsonObject] = await self._call("reset", task)
        return result

    async def step(self, action: Mapping[str, Any] | BaseModel) -> StepResult[JsonObject]:
        payload = {"action": action_payload(action)}
        result: StepResult[JsonObject] = await self._call("step", payload)
        return result

    async def state(self) -> JsonObject:
        state: JsonObject = await self._call("state", {})
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

    async def _reply(self, reference: Awaitable[SessionReply]) -> Any:
        try:
            reply = await reference
        except import_ray().exceptions.RayError as error:
            raise SessionLost(f"The session's node failed: {last_line(error)}") from error
        for fault in reply.faults:
            report_fault(fault)
        if reply.error is not None:
            raise reply.error
        return reply.value


class RayEndpoint(Endpoint):
    """Sessions of one environment on a cluster."""

    def __init__(self, spec: str, hosts: Sequence[SessionHost]) -> None:
        self.spec = spec
        self._hosts = hosts

    def session(self) -> Session:
        return RaySession(self._hosts, self.spec)


@asynccontextmanager
async def hosted_endpoints(
    endpoints: Mapping[str, EnvironmentEndpoint], num_hosts: int
) -> AsyncIterator[dict[str, EnvironmentEndpoint]]:
    """Endpoints of the same environments, with their sessions on the nodes of a cluster."""
    setup = ActorSetup.of_this_process(specs=list(endpoints))
    actors: list[Any] = []
    hosts: list[SessionHost] = []

    async def start_host() -> None:
        actor = create_actor(setup, max_calls=MAX_CALLS_PER_ACTOR)
        actors.append(actor)
        await open_actor(actor)
        hosts.append(SessionHost(actor))

    hosted = {}
    for spec, each in endpoints.items():
        assert isinstance(each.endpoint, LocalEndpoint)
        endpoint = RayEndpoint(spec, hosts)
        if each.endpoint.max_sessions is not None:
            endpoint.max_sessions = each.endpoint.max_sessions * num_hosts
        hosted[spec] = replace(each, endpoint=endpoint)
    starts = [asyncio.create_task(start_host()) for _ in range(num_hosts)]
    try:
        ended, _ = await asyncio.wait(
            starts, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not ended:
            raise WorkersFailed(f"No worker has started in time. {_STATUS_ADVICE}")
        for task in ended:
            task.result()
        yield hosted
    finally:
        for task in starts:
            task.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        for actor in actors:
            import_ray().kill(actor)
