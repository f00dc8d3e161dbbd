"""The containers of a run end with it, whichever stage plays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_in_engine import StandInEngine, stand_in_engine

from ludus.environment.mixture import parse_mixture
from ludus.errors import ContainerFailed
from ludus.rollout.config import RolloutConfig
from ludus.rollout.endpoints import resolve_endpoints
from ludus.train.grpo.rollout_worker import RolloutWorker


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInEngine]:
    with stand_in_engine(tmp_path / "engine") as installed:
        monkeypatch.setenv("PATH", installed.path)
        installed.serve("catch:1", "catch")
        yield installed


def test_a_rollout_worker_holds_a_container_until_it_closes(engine: StandInEngine) -> None:
    mixture = parse_mixture("docker:catch:1=0.5,echo=0.5")
    assert mixture.specs == ("docker:catch:1", "echo")
    with RolloutWorker(mixture, RolloutConfig()) as worker:
        assert worker.names == ("catch", "echo")
        worker.preflight(seed=0)
        assert len(engine.containers()) == 1
    assert not engine.containers()


async def test_an_environment_that_cannot_be_resolved_ends_the_containers_of_the_others(
    engine: StandInEngine,
) -> None:
    with pytest.raises(ContainerFailed, match="'missing:1'"):
        await resolve_endpoints(parse_mixture("docker:catch:1,docker:missing:1"))
    assert [call[-1] for call in engine.calls if call[0] == "run"] == ["catch:1", "missing:1"]
    assert not engine.containers()
