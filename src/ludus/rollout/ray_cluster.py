"""A Ray cluster: workers on its cores that play blocks of episodes."""

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
from pathlib import Path
from typing import Any, NamedTuple

from ludus import __version__
from ludus.errors import ConfigError, MissingExtra, WorkersFailed, describe_in_one_line
from ludus.rollout.process_worker import available_cores
from ludus.rollout.workers import BlockReply, EpisodePlay, Worker, WorkerSource, WorkItem, run_block

LOCAL = "local"
"""The address that starts a cluster on this machine."""
CONNECT_TIMEOUT_S, CLOSE_TIMEOUT_S = 5.0, 5.0
START_RETRIES = 10
"""Other nodes that are tried for an actor: the cluster takes a while to notice a lost one."""
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


@asynccontextmanager
async def open_cluster(address: str) -> AsyncIterator[int]:
    """Connect to a cluster for the time of a block; yields its number of cores.

    A connection that the program has already is used, and left open.
    """
    ray = import_ray()
    connect = not ray.is_initialized()
    if connect:
        check_address(address)
        await asyncio.to_thread(_connect, ray, address)
    try:
        yield max(1, int(ray.cluster_resources().get("CPU", 0)))
    finally:
        if connect:
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


class Node(NamedTuple):
    """The machine of an actor, and why the actor cannot work there."""

    id: str
    address: str
    problem: str | None


class NodeActor:
    """Works on blocks on a node; there is one for each core that is used."""

    def __init__(
        self, pickled_work: bytes, version: str, sys_path: Sequence[str], folder: str
    ) -> None:
        self._pickled_work, self._version = pickled_work, version
        # The same modules and files, as far as the node has them. Ray repeats this on another node.
        sys.path += [path for path in sys_path if path not in sys.path]
        with suppress(OSError):
            os.chdir(folder)

    async def open(self) -> Node:
        """Unpickle and open the work on this node; the result names the problem, if any."""
        problem, ray = None, import_ray()
        try:
            if self._version != __version__:
                there = f"this machine {self._version}"
                raise WorkersFailed(f"it has Ludus {__version__}, and {there}")
            self._work: EpisodePlay = ray.cloudpickle.loads(self._pickled_work)
            await self._work.open()
        except Exception as error:
            problem = describe_in_one_line(error)
        node_id = ray.get_runtime_context().get_node_id()
        return Node(node_id, ray.util.get_node_ip_address(), problem)

    async def run(self, items: Sequence[WorkItem]) -> BlockReply:
        return await run_block(self._work, items)

    async def close(self) -> None:
        await self._work.close()


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
        # The cluster notices some seconds after the connection was closed. Until then the episodes
        # seem to have ended the worker, which is harmless the first time.
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
    """Starts actors for some work on free cores of the cluster.

    An actor for which there is none waits: it takes the place of a lost node once there is another.
    """

    advice = "See `ray status`."
    block_s = 0.1
    max_block_size = 256
    start_timeout_s = 60.0

    def __init__(self, work: EpisodePlay) -> None:
        try:
            self._pickled_work: bytes = import_ray().cloudpickle.dumps(work)
        except Exception as error:
            reason = describe_in_one_line(error)
            raise WorkersFailed(f"`ray`: the agent cannot be sent: {reason}") from error

    async def start_worker(self) -> RayWorker:
        """Start an actor on any core of the cluster, once one is free."""
        ray = import_ray()
        # Ray moves it from a lost node.
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_restarts": -1}
        actor = (
            ray.remote(NodeActor)
            .options(**options)
            .remote(self._pickled_work, __version__, list(sys.path), str(Path.cwd()))
        )
        try:
            node: Node = await actor.open.options(max_task_retries=START_RETRIES).remote()
        except ray.exceptions.RayError as error:
            # The last line says what happened: the others are a traceback.
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[-1].rstrip(".")[:300] if lines else type(error).__name__
            problem = f"A node of the cluster cannot start a worker: {reason}"
            raise WorkersFailed(f"{problem}. {_CODE_ADVICE}") from error
        if node.problem is not None:
            problem = node.problem.rstrip(".")
            raise WorkersFailed(
                f"The node {node.address} cannot run a worker: {problem}. {_CODE_ADVICE}"
            )
        return RayWorker(actor, node)
