"""What a collector has to survive: a failing model, kill -9, and a server that goes away."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from chat_stub import chat_stub
from ludus_process import LUDUS, run_ludus, served_by_program
from world import facts, until

from ludus.agents.agent import EpisodeContext, Player
from ludus.agents.oracle import OracleAgent
from ludus.data.episode import Episode, StopReason
from ludus.data.episode_reader import episodes
from ludus.rollout import CollectConfig
from ludus.rollout.collect import collect

TESTS = Path(__file__).parents[1]
KILLS = 2
EPISODES = 100


def command(url: str, out: Path) -> list[str]:
    return [
        *("collect", "world:Counter", "--agent", "openai:stub"),
        *("--llm-endpoint", url, "--num-episodes", str(EPISODES), "--group-size", "2"),
        *("--max-turns", "6", "--call-timeout", "0.3s", "--max-retries", "30"),
        *("--concurrency", "16", "--output-dir", str(out)),
    ]


def read(out: Path) -> list[Episode]:
    found = sorted(episodes(out / "episodes.jsonl"), key=lambda episode: episode.episode_id)
    assert [episode.episode_id[-6:] for episode in found] == [f"{i:06d}" for i in range(EPISODES)]
    return found


def killed(arguments: list[str], after: float) -> bool:
    """Start it, and kill it with -9 after so many seconds; whether it was still running then."""
    process = subprocess.Popen(
        [*LUDUS, *arguments], cwd=TESTS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        return process.wait() == -signal.SIGKILL
    return False


@pytest.mark.timeout(400)
def test_a_failing_model_and_two_kills_change_nothing_in_the_file(tmp_path: Path) -> None:
    chance = random.Random(11)
    with chat_stub(latency=0.03) as calm:
        done = run_ludus(*command(calm.url, tmp_path / "calm"), cwd=TESTS)
        assert done.returncode == 0, done.stderr
    undisturbed = read(tmp_path / "calm")
    with chat_stub(latency=0.03, fail=0.3, seed=5) as stub:
        drill = command(stub.url, tmp_path / "drill")
        still_running = [killed(drill, chance.uniform(0.2, 1.6)) for _ in range(KILLS)]
        assert all(still_running), "a run ended before it was killed: give it more to do"
        done = run_ludus(*drill, cwd=TESTS)
        assert done.returncode == 0, done.stderr
    disturbed = read(tmp_path / "drill")
    assert {"429", "500", "cut", "hang"} <= stub.counts.keys()
    assert not [episode for episode in disturbed if episode.reward is None or episode.error]
    assert [facts(e) | {"agent": 0} for e in disturbed] == [
        facts(e) | {"agent": 0} for e in undisturbed
    ], "agent holds the address of the stub, which is another one"
    assert 0.0 < sum(e.reward or 0.0 for e in disturbed) < EPISODES, "both rewards are to be seen"


class Unhurried(OracleAgent):
    async def begin(self, context: EpisodeContext) -> Player:
        await asyncio.sleep(0.1)
        return await super().begin(context)


async def test_a_server_that_is_killed_and_started_again_costs_no_episode(tmp_path: Path) -> None:
    with served_by_program("world:Counter", cwd=TESTS) as first:
        port = first.url.rpartition(":")[2]
        running = asyncio.create_task(
            collect(
                "world:Counter",
                tmp_path / "run",
                CollectConfig(
                    agent=Unhurried(),
                    num_episodes=120,
                    base_url=first.url,
                    concurrency=8,
                    retry_delay=0.05,
                ),
            )
        )
        journal = tmp_path / "run/episodes.jsonl"
        await until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 20)
        first.process.kill()
        await asyncio.sleep(1.0)
        assert not running.done(), running.exception()
        with served_by_program("world:Counter", "--port", port, cwd=TESTS):
            outcome = await running
    assert outcome.summary["complete"]
    found = list(episodes(journal))
    assert len(found) == len({episode.episode_id for episode in found}) == 120
    assert {(e.reward, e.stop_reason) for e in found} == {(1.0, StopReason.DONE)}
    assert max(episode.attempt for episode in found) > 1, "nobody noticed that the server was gone"
