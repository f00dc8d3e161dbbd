"""Episodes on a Ray cluster of three nodes on this machine, one of which is killed."""

from __future__ import annotations

import asyncio
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ludus.errors import ConfigError, MissingExtra, WorkersFailed
from ludus.rollout.collect import Collector
from ludus.rollout.ray_cluster import check_address

from .small_runs import COUNTER, Priced, Stopping, read, run

ELSEWHERE = """
import sys
from world import Counter
assert not any("default_worker" in word for word in sys.orig_argv), "this node has no dictionary"
class Picky(Counter):
    "Only where the run was started."
"""


class Interrupting(Stopping):
    """Keeps warnings, and does something once some episodes are recorded."""

    def __init__(self, act: Callable[[Collector], None], after: int) -> None:
        super().__init__(act, when=lambda collector: collector.stats.new_episodes >= after)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head node that this process belongs to, and two others, with one core each."""
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own.
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=1)
            yield cluster
        finally:
            cluster.shutdown()


def kill_a_node(cluster: Any) -> Callable[[Collector], None]:
    def kill(collector: Collector) -> None:
        node = next(iter(cluster.worker_nodes))
        collector.kill = asyncio.create_task(  # type: ignore[attr-defined]
            asyncio.to_thread(cluster.remove_node, node, False)
        )

    return kill


@pytest.mark.slow
async def test_a_lost_nodes_episodes_are_played_once_on_others(
    tmp_path: Path, cluster: Any
) -> None:
    progress = Interrupting(kill_a_node(cluster), after=200)
    await run(tmp_path / "run", n=6000, ray=cluster.address, progress=progress)
    played = read(tmp_path / "run")
    assert [int(each.episode_id[-6:]) for each in played] == list(range(6000))
    assert {each.reward for each in played} == {1.0}
    assert {each.attempt for each in played} == {1}
    assert any("node" in warning for warning in progress.warnings)


@pytest.mark.slow
async def test_a_node_without_the_code_is_named(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "picky.py").write_text(ELSEWHERE)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WorkersFailed, match=r"node [\d.]+ .*no dictionary"):
        await run(tmp_path / "run", spec="picky:Picky", n=9, ray=cluster.address)


@pytest.mark.slow
async def test_a_model_is_refused(tmp_path: Path, cluster: Any) -> None:
    with pytest.raises(ConfigError, match="'priced'"):
        await run(tmp_path / "run", Priced(), n=9, ray=cluster.address)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:", "head:x"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="`ray`"):
        check_address(address)


def test_an_address_without_a_cluster_is_refused_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ConfigError, match=address):
        check_address(address)


async def test_the_extra_is_named_where_ray_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"ludus-rl\[ray\]"):
        await run(tmp_path / "run", spec=COUNTER, ray="local")
    assert not (tmp_path / "run").exists()
