"""A Ray cluster, and workers that are its actors, one per core."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from ludus import __version__
from ludus.errors import ConfigError, MissingExtra, WorkersFailed, describe_in_one_line
from ludus.rollout.process_worker import available_cores
from ludus.rollout.workers import BlockReply, BlockWork, Worker, WorkerSource, run_block

LOCAL = "local"
"""The address that starts a cluster on this machine."""
CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A cluster that this process is connected to."""

    address: str

    @property
    def num_cores(self) -> int:
        """Cores of all nodes at the moment."""
        return max(1, int(import_ray().cluster_resources().get("CPU", 0)))

    async def is_alive(self, node_id: str) -> bool:
        """Whether the cluster has not noticed yet that a node is gone."""
        nodes = await asyncio.to_thread(import_ray().nodes)
        return any(node["NodeID"] == node_id and node["Alive"] for node in nodes)


def import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtra.of("ray", "`ray`") from error
    return ray


@asynccontextmanager
async def open_cluster(address: str | None) -> AsyncIterator[RayCluster | None]:
    """Connect to a cluster for the time of a block; None without an address.

    A connection that the program has already is used, and left open.
    """
    if address is None:
        yield None
        return
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
    """Raise where no cluster can be at this address. Ray itself would try for a minute."""
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
        raise ConfigError(
            f"`ray`: there is no cluster at {address} ({getattr(error, 'strerror', '') or error}). "
            "Start one with ray start --head, or use local."
        ) from error


def _connect(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    # Reports of Ray about lost workers, which are pages of its logs and have no option, would tear
    # the progress display. Ours are warnings of one line.
    ray._private.worker.print_to_stdstream = lambda *arguments, **options: None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address == LOCAL:
        options |= {"num_cpus": available_cores(), "include_dashboard": False}
    try:
        ray.init(address=address, **options)
    except ConnectionError as error:
        raise ConfigError(
            f"`ray`: there is no cluster at {address}. Start one with ray start --head, or use "
            "local."
        ) from error
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise WorkersFailed(f"`ray`: {' '.join(str(error).split())}") from error
        raise ConfigError(
            f"`ray`: the cluster at {address} has another version of Ray or Python than this "
            f"machine (Ray {ray.__version__}, Python {platform.python_version()}). "
            "Install the same on all of them."
        ) from error


CLOSE_TIMEOUT_S = 5.0
MAX_START_ATTEMPTS, START_RETRY_S = 10, 3.0
START_TIMEOUT_S, JOIN_TIMEOUT_S = 60.0, 5.0
STATUS_ADVICE = "See `ray status`."
_CODE_ADVICE = (
    "All nodes need the same version of Ludus, and the code of environments, agents and reward "
    "functions: install it there, or run in a folder that they share."
)


class ActorSetup(NamedTuple):
    """What an actor needs of the process that has started it."""

    version: str
    sys_path: list[str]
    folder: str

    @classmethod
    def of_this_process(cls) -> ActorSetup:
        return cls(__version__, list(sys.path), os.getcwd())  # noqa: PTH109 - sent as text

    def apply(self) -> None:
        """Make the same modules and files available, as far as the node has them."""
        if self.version != __version__:
            raise WorkersFailed(f"it has Ludus {__version__}, and this machine {self.version}")
        sys.path += [path for path in self.sys_path if path not in sys.path]
        with suppress(OSError):
            os.chdir(self.folder)


class Node(NamedTuple):
    """The machine of an actor."""

    id: str
    address: str

    @classmethod
    def of_this_process(cls) -> Node:
        ray = import_ray()
        return cls(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())


class ActorStart(NamedTuple):
    """The first reply of an actor."""

    node: Node
    problem: str | None


class BlockActor:
    """The program of a worker: works on blocks, one after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def open(self, setup: ActorSetup, pickled_work: bytes) -> ActorStart:
        try:
            setup.apply()
            self._work: BlockWork = import_ray().cloudpickle.loads(pickled_work)
            self._loop.run_until_complete(self._work.open())
        except Exception as error:
            return ActorStart(Node.of_this_process(), describe_in_one_line(error))
        return ActorStart(Node.of_this_process(), None)

    def run(self, items: Sequence[Any]) -> BlockReply:
        return self._loop.run_until_complete(run_block(self._work, items))

    def close(self) -> None:
        self._loop.run_until_complete(self._work.close())


async def start_actor(actor_class: Any, *arguments: Any) -> tuple[Any, Node]:
    """Start and open an actor; raises `WorkersFailed` where its node cannot run it.

    Waits until the cluster has a free core. Some seconds pass before the cluster notices that a
    node is gone, and what it starts there meanwhile is started again.
    """
    lost = import_ray().exceptions.RayError
    for attempt in range(1, MAX_START_ATTEMPTS + 1):
        actor = actor_class.remote()
        try:
            start: ActorStart = await actor.open.remote(ActorSetup.of_this_process(), *arguments)
            break
        except lost as error:
            if attempt == MAX_START_ATTEMPTS or getattr(error, "actor_init_failed", False):
                problem = f"A node of the cluster cannot start a worker: {last_line(error)}"
                raise WorkersFailed(f"{problem}. {_CODE_ADVICE}") from error
            await asyncio.sleep(START_RETRY_S)
    if start.problem is not None:
        problem = start.problem.rstrip(".")
        raise WorkersFailed(
            f"The node {start.node.address} cannot run a worker: {problem}. {_CODE_ADVICE}"
        )
    return actor, start.node


def last_line(error: BaseException) -> str:
    """The line of a Ray error that says what happened: the others are a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".")[:300] if lines else type(error).__name__


class RayWorker(Worker):
    """One actor."""

    def __init__(self, cluster: RayCluster, actor: Any, node: Node) -> None:
        super().__init__()
        self.node = node
        self._cluster = cluster
        self._actor = actor
        self._replies: deque[Any] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None

    def send(self, items: Sequence[Any]) -> None:
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
            self.kill()  # It may live on where only the reply was lost.
            raise EOFError from error
        return reply

    async def exit_status(self) -> str:
        return f"{type(self._error).__name__} on the node {self.node.address} ({self.node.id[:8]})"

    async def is_node_lost(self) -> bool:
        # The cluster notices some seconds after the connection was closed. Until then it looks as
        # if the episodes had ended the worker, which costs them nothing the first time.
        return not await self._cluster.is_alive(self.node.id)

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

    advice = STATUS_ADVICE
    block_s = 0.1
    max_block_size = 256
    start_timeout_s = START_TIMEOUT_S
    join_timeout_s = JOIN_TIMEOUT_S

    def __init__(self, cluster: RayCluster, work: BlockWork) -> None:
        ray = import_ray()
        self._cluster = cluster
        try:
            self._work = ray.cloudpickle.dumps(work)
        except Exception as error:
            reason = describe_in_one_line(error)
            raise WorkersFailed(f"`ray`: the agent or a reward cannot be sent: {reason}") from error
        self._actor_class = ray.remote(BlockActor).options(num_cpus=1, scheduling_strategy="SPREAD")

    async def start_worker(self) -> RayWorker:
        return RayWorker(self._cluster, *await start_actor(self._actor_class, self._work))
