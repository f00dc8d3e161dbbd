"""The connection to a Ray cluster, or one that is started on this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ludus.errors import ConfigError, MissingExtra, WorkersFailed
from ludus.rollout.available_cores import available_cores

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
