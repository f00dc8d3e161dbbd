"""Budgets, the ways to end a run, and what the next start finds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from world import Counter, serving, until

from ludus import State, ToolCall
from ludus.agents.agent import EpisodeContext, Player
from ludus.agents.human import HumanAgent
from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import ScriptedAgent
from ludus.data.episode import StopReason
from ludus.data.episode_reader import episodes
from ludus.errors import (
    ConfigError,
    ModelBusy,
    RunError,
    StoppedEarly,
)
from rollout.small_runs import Flaky, Priced, Slow, Stopping, Warnings, read, run


@pytest.mark.parametrize(
    ("budget", "limit", "most"),
    [
        ({"max_cost": 0.5}, "$0.5", 50),
        ({"max_total_tokens": 3000}, "3,000", 30),
    ],
)
async def test_a_budget_ends_the_run_and_counts_earlier_starts(
    tmp_path: Path, budget: dict[str, Any], limit: str, most: int
) -> None:
    first = await run(tmp_path / "run", Priced(), n=300, **budget)
    assert first.stop_reason is not None and limit in first.stop_reason
    assert most - 2 <= first.summary["episodes"] <= most + 1
    assert first.summary["remaining"] == 300 - first.summary["episodes"]
    second = await run(tmp_path / "run", Priced(), n=300, **budget)
    assert first.summary["episodes"] + second.new_episodes <= most + 1
    await run(tmp_path / "run", Priced(), n=300)
    assert len(read(tmp_path / "run")) == 300


async def test_time_is_a_budget_too(tmp_path: Path) -> None:
    result = await run(
        tmp_path / "run",
        Priced(),
        n=100_000,
        max_time=0.3,
        concurrency=4,
    )
    assert result.stop_reason is not None and "0.3 s" in result.stop_reason
    assert 0 < result.summary["episodes"] < 100_000


async def test_a_cost_limit_without_a_price_is_refused(tmp_path: Path) -> None:
    class Unpriced(Priced):
        has_price = False

    with pytest.raises(ConfigError, match="`max_cost`"):
        await run(tmp_path / "run", Unpriced(), max_cost=1.0)
    assert not (tmp_path / "run").exists()


async def test_draining_finishes_what_is_under_way(tmp_path: Path) -> None:
    drain = Stopping(lambda run: run.drain("enough"), when=lambda run: run.stats.active == 8)
    result = await run(tmp_path / "run", Slow(), n=100, progress=drain, concurrency=8)
    assert (result.stop_reason, result.summary["episodes"]) == ("enough", 8)


async def test_draining_does_not_begin_another_attempt(tmp_path: Path) -> None:
    drain = Stopping(
        lambda run: run.drain("enough"), when=lambda run: run.stats.faults.total() == 4
    )
    dead = Flaky(lambda key, attempt: ModelBusy("HTTP 503"))
    result = await run(tmp_path / "run", dead, n=4, progress=drain, concurrency=4, retry_delay=60.0)
    assert (result.stop_reason, result.summary["episodes"]) == ("enough", 0)


async def test_aborting_leaves_what_is_under_way_to_be_played_again(tmp_path: Path) -> None:
    abort = Stopping(lambda run: run.abort("now"), when=lambda run: run.stats.active == 8)
    result = await run(tmp_path / "run", Slow(), n=20, progress=abort, concurrency=8)
    assert (result.stop_reason, result.summary["episodes"]) == ("now", 0)
    result = await run(tmp_path / "run", n=20)
    assert result.summary["scored"] == 20


async def test_two_writers_do_not_share_a_run(tmp_path: Path) -> None:
    first_started = asyncio.Event()

    class Waiting(OracleAgent):
        async def begin(self, context: EpisodeContext) -> Player:
            first_started.set()
            await second_failed.wait()
            return await super().begin(context)

    second_failed = asyncio.Event()
    first = asyncio.create_task(run(tmp_path / "run", Waiting(), n=4))
    await first_started.wait()
    with pytest.raises(RunError, match="Another process"):
        await run(tmp_path / "run", n=4)
    second_failed.set()
    await first


async def test_a_torn_line_is_mended_and_its_episode_played_again(tmp_path: Path) -> None:
    await run(tmp_path / "run", n=10, concurrency=1)
    journal = tmp_path / "run/episodes.jsonl"
    journal.write_bytes(journal.read_bytes()[:-200])
    progress = Warnings()
    result = await run(tmp_path / "run", n=10, progress=progress)
    assert (result.new_episodes, result.summary["episodes"]) == (1, 10)
    assert len(progress.warnings) == 1
    assert [e.stop_reason for e in read(tmp_path / "run")] == [StopReason.DONE] * 10


async def test_damage_in_the_middle_of_a_journal_is_told_and_played_again(tmp_path: Path) -> None:
    await run(tmp_path / "run", n=4, concurrency=1)
    journal = tmp_path / "run/episodes.jsonl"
    first, _, *rest = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([first, b"not an episode\n", *rest, first]))
    progress = Warnings()
    result = await run(tmp_path / "run", n=4, progress=progress)
    assert (result.new_episodes, result.summary["episodes"]) == (1, 4)
    damage, twice = progress.warnings
    assert "1 damaged line (2)" in damage
    assert "1 episodes twice" in twice


async def test_a_damaged_line_of_a_finished_run_is_found_by_the_checksum(tmp_path: Path) -> None:
    """Neither the length of the file nor the head of the line tells that an episode is lost."""
    await run(tmp_path / "run", n=4, concurrency=1)
    journal = tmp_path / "run/episodes.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"messages":[', b'"messages":{')
    journal.write_bytes(b"".join(lines))
    progress = Warnings()
    result = await run(tmp_path / "run", n=4, progress=progress)
    assert (result.new_episodes, result.summary["episodes"]) == (1, 4)
    assert ["1 damaged line (3)" in words for words in progress.warnings] == [True]
    again = await run(tmp_path / "run", n=4)
    assert (again.new_episodes, again.summary["episodes"], again.summary["scored"]) == (0, 4, 4)
    assert len(list(episodes(journal))) == 4


async def test_the_watchdog_is_heard(tmp_path: Path) -> None:
    class Stuck(OracleAgent):
        async def begin(self, context: EpisodeContext) -> Player:
            await until(lambda: any("has waited" in words for words in progress.warnings))
            return await super().begin(context)

    progress = Warnings()
    result = await run(tmp_path / "run", Stuck(), n=1, progress=progress, stall_warning=0.1)
    assert result.summary["scored"] == 1


async def test_an_environment_that_never_opens_meets_the_deadline(tmp_path: Path) -> None:
    class Stuck(Counter):
        """Opens once, for the rehearsal."""

        begun = 0

        def __init__(self) -> None:
            super().__init__()
            Stuck.begun += 1

        @property
        async def state(self) -> State:  # type: ignore[override]
            if Stuck.begun > 1:
                await asyncio.sleep(60)
            return State()

    with (
        serving(Stuck, shutdown_timeout=0.1) as served,
        pytest.raises(StoppedEarly, match="Deadline"),
    ):
        await run(tmp_path / "run", ScriptedAgent(), spec=served.url, n=2, episode_timeout=0.2)


async def test_a_person_plays_one_episode_after_the_other(tmp_path: Path) -> None:
    shown: list[str] = []
    asked: list[str] = []

    async def ask(prompt: str) -> str:
        await asyncio.sleep(0)
        asked.append(shown[-1])
        return "60"

    person = HumanAgent(ask, lambda message: shown.append(message.text))
    await run(tmp_path / "run", person, n=3)
    assert [line.split()[0] for line in shown] == ["Reach", "Total"] * 3
    assert all(line.startswith("Reach") for line in asked)


async def test_sessions_are_given_back(tmp_path: Path) -> None:
    with serving(Counter) as served:
        await run(tmp_path / "run", n=30, base_url=served.url, concurrency=8)
        assert len(served.sessions) == 0


async def test_arguments_of_the_scripted_agent_are_recorded(tmp_path: Path) -> None:
    agent = ScriptedAgent(ToolCall(name="add", arguments={"number": 60}))
    await run(tmp_path / "run", agent, n=2)
    assert {e.reward for e in read(tmp_path / "run")} == {0.0}
