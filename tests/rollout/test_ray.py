"""Episodes on a Ray cluster of three nodes on this machine, one of which is killed."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_stub import chat_stub

from ludus.agents.openai import OpenAIAgent
from ludus.errors import ConfigError, MissingExtra, WorkersFailed
from ludus.rollout import ray_cluster
from ludus.rollout.collect import Collector
from ludus.rollout.ray_cluster import ActorSetup, NodeActor, check_address

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
async def test_the_rate_limit_and_the_budget_are_those_of_the_cluster(
    tmp_path: Path, cluster: Any
) -> None:
    progress = Interrupting(kill_a_node(cluster), after=10)
    with chat_stub(latency=0.05) as stub:
        async with OpenAIAgent("stub", endpoint=stub.url, concurrency=4) as agent:
            result = await run(
                tmp_path / "run",
                agent,
                spec="wordle",
                n=60,
                ray=cluster.address,
                progress=progress,
                max_turns=3,
            )
    assert stub.peak <= 4
    assert result.summary["scored"] == 60 and result.summary["broken"] == 0
    assert len({each.episode_id for each in read(tmp_path / "run")}) == 60
    limited = await run(
        tmp_path / "limited", Priced(), n=200, ray=cluster.address, max_turns=2, max_cost=0.5
    )
    assert limited.stop_reason is not None and "cost" in limited.stop_reason
    cost = limited.summary["usage"]["cost"]
    assert 0.3 < cost <= 0.5


@pytest.mark.slow
async def test_a_node_without_the_code_is_named(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "picky.py").write_text(ELSEWHERE)
    monkeypatch.syspath_prepend(tmp_path)
    for name, agent in (("blocks", None), ("sessions", Priced())):
        with pytest.raises(WorkersFailed, match=r"node [\d.]+ .*no dictionary"):
            await run(tmp_path / name, agent, spec="picky:Picky", n=9, ray=cluster.address)


async def test_sessions_that_no_node_has_a_core_for_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoRay:
        def kill(self, actor: Any) -> None: ...

    async def never(actor: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(ray_cluster, "import_ray", NoRay)
    monkeypatch.setattr(ray_cluster, "START_TIMEOUT_S", 0.05)
    monkeypatch.setattr(ray_cluster, "create_actor", lambda setup, max_calls: object())
    monkeypatch.setattr(ray_cluster, "open_actor", never)
    with pytest.raises(WorkersFailed, match="in time"):
        async with ray_cluster.hosted_endpoints({}, 2):
            raise AssertionError


async def test_exceptions_of_an_environment_come_with_the_reply_of_an_actor(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(
        "from world import Counter\n"
        "class Broken(Counter):\n"
        "    'A counter that cannot start.'\n"
        "    def reset(self, **task):\n"
        "        raise ValueError('no map')\n"
    )
    actor = NodeActor(ActorSetup.of_this_process())
    gc.collect()
    await actor.open_session(0, f"{file}:Broken")
    reply = await actor.call(0, "reset", {})
    assert reply.error is not None and len(reply.faults) == 1
    await actor.close_session(0)


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
