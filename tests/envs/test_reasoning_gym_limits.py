"""Hostile answers: none runs, none takes the machine, and each costs only itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envs.hostile_answers import EVALUATED, every
from envs.questions import ENDLESS, hosted
from ludus.client.endpoint import connect
from ludus.environment.worker_processes import WorkerLost
from ludus.envs.reasoning_gym import ReasoningGym, ReasoningGymAction, ReasoningGymObservation
from ludus.envs.reasoning_gym.environment import dataset_names, process_pool
from ludus.envs.reasoning_gym.worker import ANSWER_MEMORY_BYTES, MIB
from ludus.protocol.observation_text import render_observation


async def scored(name: str, answer: str) -> ReasoningGymObservation:
    environment = ReasoningGym(name)
    await environment.reset_async(seed=1, size=1)
    return await environment.step_async(ReasoningGymAction(answer=answer))


async def scores(name: str, answers: list[str]) -> list[float]:
    seen = await asyncio.gather(*(scored(name, answer) for answer in answers))
    return [one.score for one in seen if one.score is not None]


def pids() -> set[int]:
    return {child.pid for child in process_pool().workers}


def test_there_are_several_hundred_hostile_answers(tmp_path: Path) -> None:
    assert len(set(every(tmp_path / "canary"))) > 400


async def test_no_hostile_answer_runs_where_answers_are_evaluated(tmp_path: Path) -> None:
    """Each answer goes to one data set that evaluates, the next one to the next."""
    canary = tmp_path / "canary"
    answers = every(canary)
    for place, name in enumerate(EVALUATED):
        for score in await scores(name, answers[place :: len(EVALUATED)]):
            assert score < 0.5, name
    assert not canary.exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_no_hostile_answer_runs_anywhere(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    answers = every(canary)
    for name in dataset_names():
        for score in await scores(name, answers):
            assert 0.0 <= score <= 1.0
    assert not canary.exists()


@pytest.mark.parametrize("name", ["countdown", "simple_equations"])
def test_the_power_that_took_five_gigabytes_is_worth_nothing(name: str) -> None:
    _, seen = hosted(
        f"reasoning_gym:{name}", ("reset", {"seed": 1}), ("step", {"answer": "2**(10**10)"})
    )
    assert (seen.reward, seen.done) == (0.0, True)


async def test_a_model_is_told_why_its_answer_was_not_evaluated() -> None:
    async with connect("reasoning_gym:countdown").session() as session:
        await session.reset(seed=1)
        refused = await session.call("answer", {"answer": "2**(10**10)"})
        await session.reset(seed=1)
        scored = await session.call("answer", {"answer": "1 + 1"})
    assert (refused.reward, refused.done, refused.error) == (0.0, True, None)
    assert "not evaluated" in str(render_observation(refused.observation))
    assert "note" not in scored.observation


@pytest.mark.skipif(not Path("/proc").exists(), reason="only Linux keeps a memory limit")
async def test_memory_that_only_the_scorer_would_ask_for_is_not_given() -> None:
    """Fourteen thousand moves, ten thousand times each, would be a list of a gigabyte."""
    (score,) = await scores("rubiks_cube", ["F9999 " * 14_000])
    assert score < 0.1
    assert max(map(peak_mib, pids())) < 600


def peak_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) // 1024


def limited(deed: str) -> str:
    start = (
        "from ludus.envs.reasoning_gym.worker import limit_memory, ANSWER_MEMORY_BYTES\n"
        "limit_memory(ANSWER_MEMORY_BYTES)\n"
    )
    command = [sys.executable, "-c", start + deed]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not Path("/proc").exists(), reason="only Linux keeps a memory limit")
def test_memory_counts_from_the_start_of_each_request() -> None:
    much, little = ANSWER_MEMORY_BYTES + 64 * MIB, ANSWER_MEMORY_BYTES * 3 // 4
    refused = f"try:\n    bytearray({much})\nexcept MemoryError:\n    print('refused')"
    assert limited(refused) == "refused\n"
    again = (
        f"kept = bytearray({little}); limit_memory(ANSWER_MEMORY_BYTES); more = bytearray({little})"
    )
    assert limited(f"{again}; print('given')") == "given\n"


async def killed_by(number: int) -> ReasoningGymObservation:
    """The score of an answer whose workers are all killed by this signal as soon as they start."""
    environment = ReasoningGym("simple_integration")
    await environment.reset_async(seed=1, size=1)
    scoring = asyncio.create_task(environment.step_async(ReasoningGymAction(answer=ENDLESS)))
    killed: set[int] = set()
    while not scoring.done():
        for pid in pids() - killed:
            os.kill(pid, number)
            killed.add(pid)
        await asyncio.sleep(0.01)
    assert len(killed) >= 2
    return await scoring


async def test_an_answer_that_crashes_two_workers_is_worth_nothing() -> None:
    seen = await killed_by(signal.SIGSEGV)
    assert seen.score == 0.0 and seen.note is not None


async def test_workers_that_are_killed_from_outside_are_a_fault() -> None:
    with pytest.raises(WorkerLost):
        await killed_by(signal.SIGKILL)
