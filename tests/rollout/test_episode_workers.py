"""Episodes that worker processes play: the same ones, also where workers end."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from ludus_process import run_ludus, start_ludus

from ludus import Episode
from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import RandomAgent, ScriptedAgent
from ludus.client.event_loop import run_async
from ludus.data.episode_reader import episodes
from ludus.environment.faults import capture_faults, report_once
from ludus.errors import ConfigError, StoppedEarly, WorkersFailed
from ludus.rollout import collect as collector_module
from ludus.rollout import workers as workers_module
from ludus.rollout.collect import Collector
from ludus.rollout.episode_loop import EpisodeLimits
from ludus.rollout.plan import Assignment
from ludus.rollout.process_worker import ProcessWorker, ProcessWorkers
from ludus.rollout.workers import EpisodePlay

from .small_runs import Stopping, quick_config, read, run

FRAGILE = '''
import os, signal, sys, time
from pathlib import Path
from ludus import ToolCall, ToolEnvironment, tool

MARKER = Path(__file__).with_name("marker")
IN_WORKER = "ludus.rollout.process_worker" in sys.orig_argv


class Fragile(ToolEnvironment):
    """Does to its process what the test says."""

    def reset(self, *, seed: int | None = None, fate: str = "") -> str:
        self.fate = fate if IN_WORKER else ""
        return f"Say {seed}."

    @tool
    def say(self, number: int) -> str:
        """Say a number.

        Args:
            number: The number.
        """
        print("not for the pipe")
        if self.fate == "die" or (self.fate == "die once" and not MARKER.exists()):
            MARKER.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fate == "raise":
            raise ValueError("what a pity")
        if self.fate == "hang":
            MARKER.write_text(str(os.getpid()))
            time.sleep(600)
        return self.finish(1.0, "Thank you.")

    def oracle(self) -> ToolCall:
        return ToolCall(name="say", arguments={"number": 1})
'''


@pytest.fixture
def fragile(tmp_path: Path) -> str:
    (tmp_path / "fragile.py").write_text(FRAGILE)
    return f"{tmp_path / 'fragile.py'}:Fragile"


def without_timing(episode: Episode) -> Episode:
    return episode.model_copy(update={"timing": None})


def tasks(count: int, **fates: str) -> list[dict[str, str]]:
    """Tasks of `Fragile`, with `task_3="die"` for the fate of one of them."""
    return [{"fate": fates.get(f"task_{number}", "")} for number in range(count)]


def child_pids(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in children.split()]


def wait_until_gone(pids: list[int]) -> None:
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.01)


@pytest.mark.parametrize(("spec", "explore"), [("wordle", 0.0), ("wordle,guess_number=2", 0.3)])
async def test_workers_play_the_same_episodes_as_one_process(
    tmp_path: Path, spec: str, explore: float
) -> None:
    for workers in (1, 2):
        result = await run(
            tmp_path / str(workers), spec=spec, n=30, group_size=2, explore=explore, workers=workers
        )
        assert result.summary["complete"] and result.new_episodes == 30
    alone, together = read(tmp_path / "1"), read(tmp_path / "2")
    assert [without_timing(each) for each in together] == [without_timing(each) for each in alone]
    assert len({each.group_id for each in together}) == 15
    assert any(each.explored_turns for each in together) == (explore > 0)


async def test_workers_go_on_with_a_run_and_end_with_it(tmp_path: Path) -> None:
    pids: list[int] = []

    def stop(collector: Collector) -> None:
        assert collector.workers is not None
        workers = collector.workers.workers
        pids.extend(worker.process.pid for worker in workers if isinstance(worker, ProcessWorker))
        collector.drain("enough")

    def both_play(collector: Collector) -> bool:
        workers = collector.workers
        return workers is not None and len(workers.workers) == 2 and collector.stats.done >= 3

    stopping = Stopping(stop, when=both_play)
    first = await run(
        tmp_path / "run", RandomAgent(), spec="wordle", n=5000, workers=2, progress=stopping
    )
    assert first.stop_reason == "enough" and 3 <= first.new_episodes < 5000
    assert len(pids) == 2
    wait_until_gone(pids)
    total = first.new_episodes + 20
    second = await run(tmp_path / "run", RandomAgent(), spec="wordle", n=total, workers=1)
    assert second.new_episodes == 20
    assert [int(each.episode_id[-6:]) for each in read(tmp_path / "run")] == list(range(total))


async def test_what_a_killed_worker_was_playing_is_played_again(
    tmp_path: Path, fragile: str
) -> None:
    result = await run(
        tmp_path / "run", spec=fragile, tasks=tasks(40, task_20="die once"), n=40, workers=2
    )
    assert (tmp_path / "marker").exists()
    assert result.summary["scored"] == 40


async def test_an_episode_that_ends_its_worker_is_broken_and_no_other_one(
    tmp_path: Path, fragile: str
) -> None:
    await run(tmp_path / "run", spec=fragile, tasks=tasks(40, task_7="die"), n=40, workers=2)
    broken = [episode for episode in read(tmp_path / "run") if episode.broken]
    assert [episode.episode_id[-6:] for episode in broken] == ["000007"]
    (episode,) = broken
    assert episode.error is not None and episode.error.kind == "WorkerDied"
    assert "SIGKILL" in episode.error.message and episode.attempt == 3


async def test_workers_that_end_again_and_again_end_the_run(
    tmp_path: Path, fragile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "MAX_DEATHS_IN_A_ROW", 3)
    with pytest.raises(StoppedEarly, match=r"in a row.*SIGKILL.*`workers`"):
        await run(tmp_path / "run", spec=fragile, task={"fate": "die"}, n=200, workers=2)
    assert read(tmp_path / "run") == []


async def test_an_exception_in_a_worker_is_logged_here_with_its_traceback(
    tmp_path: Path, fragile: str
) -> None:
    faults: list[str] = []
    with capture_faults(report_once(faults.append, tracebacks=True)):
        await run(tmp_path / "run", spec=fragile, tasks=tasks(9, task_4="raise"), n=9, workers=2)
    (fault,) = faults
    assert "fragile.py" in fault and "Traceback" in fault and "what a pity" in fault
    (broken,) = [episode for episode in read(tmp_path / "run") if episode.broken]
    assert broken.error is not None and "fragile.py:" in broken.error.message


async def test_an_environment_that_a_worker_cannot_load_is_an_error(
    tmp_path: Path, fragile: str
) -> None:
    source = tmp_path / "fragile.py"
    source.write_text(f"{FRAGILE}\nassert not IN_WORKER, 'only here'\n")
    with pytest.raises(WorkersFailed, match="only here"):
        await run(tmp_path / "run", spec=fragile, n=9, workers=2)


async def test_agents_with_a_state_have_no_workers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`workers`"):
        await run(tmp_path / "run", ScriptedAgent(), n=9, workers=2)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="`workers`"):
        quick_config(workers=0)


@pytest.fixture
def long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run counts as long enough for workers, and the machine has two cores."""
    for name, value in {
        "MEASURED_S": 0,
        "MIN_CPU_SHARE": 0,
        "MIN_SECONDS_PER_WORKER": 1e-9,
    }.items():
        monkeypatch.setattr(collector_module, name, value)
    monkeypatch.setattr(collector_module, "available_cores", lambda: 2)


async def test_a_long_run_starts_workers_by_itself(tmp_path: Path, long_runs: None) -> None:
    def has_workers(collector: Collector) -> bool:
        return collector.workers is not None

    stopping = Stopping(lambda collector: collector.drain("found"), when=has_workers)
    result = await run(tmp_path / "run", spec="wordle", n=1_000_000, progress=stopping)
    assert result.stop_reason == "found"


async def test_a_long_run_goes_on_alone_where_workers_cannot_start(
    tmp_path: Path, fragile: str, long_runs: None
) -> None:
    source = tmp_path / "fragile.py"
    source.write_text(f"{FRAGILE}\nassert not IN_WORKER, 'only here'\n")

    warned = Stopping(
        lambda collector: collector.drain("warned"), when=lambda collector: bool(warned.warnings)
    )
    result = await run(tmp_path / "run", spec=fragile, n=1_000_000, progress=warned)
    assert result.stop_reason == "warned" and "only here" in warned.warnings[0]
    assert result.summary["broken"] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_the_program(tmp_path: Path, number: signal.Signals) -> None:
    command = ("collect", "wordle", "-n", "100000", "--workers", "2", "-o", str(tmp_path / "run"))
    journal = tmp_path / "run" / "episodes.jsonl"
    with start_ludus(*command) as process:
        while not journal.exists() or journal.stat().st_size == 0:
            assert process.poll() is None
            time.sleep(0.01)
        pids = child_pids(process.pid)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert len(pids) == 2
    wait_until_gone(pids)
    # One worker may be far ahead of the other: recorded episodes need not be the first ones.
    last = max(int(episode.episode_id.rpartition("-")[2]) for episode in episodes(journal))
    more = ("-n", str(last + 10), "--workers", "1", "-o", str(tmp_path / "run"))
    assert run_ludus("collect", "wordle", *more).returncode == 0
    assert len({episode.episode_id for episode in episodes(journal)}) == last + 10


@pytest.mark.slow
def test_a_worker_that_hangs_ends_with_a_killed_parent(tmp_path: Path, fragile: str) -> None:
    task = ("--task", '{"fate": "hang"}', "-o", str(tmp_path / "run"))
    marker = tmp_path / "marker"
    with start_ludus("collect", fragile, "-n", "4", "--workers", "2", *task) as process:
        while not marker.exists() or not marker.read_text():
            assert process.poll() is None
            time.sleep(0.01)
        pids = child_pids(process.pid)
        process.kill()
        process.communicate()
    assert int(marker.read_text()) in pids
    wait_until_gone(pids)


def test_a_block_for_a_worker_that_has_ended_is_no_error() -> None:
    play = EpisodePlay(
        agent=OracleAgent(),
        specs={"wordle": "wordle"},
        limits=EpisodeLimits(),
        system_prompt=None,
    )

    async def main() -> None:
        worker = await ProcessWorkers(play).start_worker()
        await worker.end()
        worker.send([(Assignment.of("wordle", seed=0), 0)])

    run_async(main())
