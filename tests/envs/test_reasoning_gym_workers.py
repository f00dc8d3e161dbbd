"""The library's child processes, asked from event loops and from threads."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from ludus.environment.worker_processes import WorkerProcess, WorkerTimeout
from ludus.envs.reasoning_gym import ReasoningGym, ReasoningGymAction, worker
from ludus.envs.reasoning_gym.environment import MAX_WORKERS, process_pool


def question(seed: int) -> str:
    asked = ReasoningGym("chain_sum").reset(seed=seed, size=1).question
    assert asked is not None
    return asked


async def question_async(seed: int) -> str:
    asked = (await ReasoningGym("chain_sum").reset_async(seed=seed, size=1)).question
    assert asked is not None
    return asked


def pids() -> list[int]:
    return [child.pid for child in process_pool().workers]


async def test_a_thousand_questions_at_once_need_no_thread() -> None:
    before = threading.active_count()
    asked = await asyncio.gather(*(question_async(seed) for seed in range(1000)))
    assert threading.active_count() == before
    assert len({*asked}) > 990
    assert asked[7] == question(7)


async def test_replies_reach_the_one_who_asked_whatever_their_order() -> None:
    async def both(seed: int) -> float | None:
        environment = ReasoningGym("chain_sum")
        await environment.reset_async(seed=seed, size=1)
        call = environment.oracle()
        assert call is not None
        return (await environment.step_async(ReasoningGymAction(**call.arguments))).score

    assert await asyncio.gather(*(both(seed) for seed in range(100))) == [1.0] * 100


@pytest.mark.skipif(MAX_WORKERS < 2, reason="needs two processors")
async def test_nobody_waits_behind_a_slow_question() -> None:
    await question_async(0)
    queue = process_pool()._queues[asyncio.get_running_loop()]
    stopped = queue._idle[-1]
    os.kill(stopped.pid, signal.SIGSTOP)
    slow = asyncio.create_task(question_async(1))
    await asyncio.sleep(0)  # It is sent.
    assert [*queue._busy] == [stopped]
    try:
        quick = asyncio.gather(*(question_async(seed) for seed in (0, 2, 3)))
        assert all(await asyncio.wait_for(quick, 120))
        assert not slow.done()
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    assert await slow == question(1)


async def test_a_child_that_is_killed_costs_no_request() -> None:
    asking = [asyncio.create_task(question_async(seed)) for seed in range(300)]
    await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    for pid in pids():
        os.kill(pid, signal.SIGKILL)
    assert len(await asyncio.gather(*asking)) == 300


@pytest.fixture
def dead_idlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All children are idle and dead, and nobody has noticed: right after a kill it is so."""
    asyncio.run(question_async(0))
    home = process_pool()
    for child in [home.lend(new=True) for _ in range(3)]:
        home.give_back(child)
    for child in home.workers:
        child._process.kill()
        child._process.wait()
    monkeypatch.setattr(WorkerProcess, "alive", True)


@pytest.mark.usefixtures("dead_idlers")
def test_an_event_loop_outlives_the_kill_of_all_children() -> None:
    assert asyncio.run(question_async(7))


@pytest.mark.usefixtures("dead_idlers")
def test_a_thread_outlives_the_kill_of_all_children() -> None:
    assert question(8)


async def test_a_request_over_its_limit_fails_alone() -> None:
    limited = process_pool().ask_async(
        b'{"do": "question", "limit": 0.05, "with": {"name": "futoshiki", "config": '
        b'{"min_board_size": 9, "max_board_size": 9}, "seed": 1, "size": 1, "index": 0}}'
    )
    others = asyncio.gather(*(question_async(seed) for seed in range(20)))
    with pytest.raises(WorkerTimeout):
        await limited
    assert len(await others) == 20


def test_loops_and_threads_hand_the_children_on() -> None:
    for seed in range(3):
        later = asyncio.run(question_async(seed))
        assert later == question(seed)
    assert len(pids()) <= 2 * MAX_WORKERS


def limited(deed: str) -> int:
    """How a process ends that may work for 0.2 s."""
    start = "import time; from ludus.envs.reasoning_gym.worker import limit_time; limit_time(0.2); "
    return subprocess.run([sys.executable, "-c", start + deed]).returncode


def test_only_work_counts_so_that_a_machine_that_stood_still_makes_no_answer_wrong() -> None:
    assert limited("time.sleep(0.5)") == 0
    assert limited("9**9**9") == -signal.SIGPROF
    assert limited("time.sleep(60)") == -signal.SIGALRM


def test_a_worker_makes_a_question_once_for_all_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def build_entry(name: str, config: dict[str, Any], **task: int) -> dict[str, Any]:
        made.append((name, config, task["seed"]))
        return {"question": f"{name} {task['seed']}?", "answer": "4", "metadata": {}}

    monkeypatch.setattr(worker, "build_entry", build_entry)
    tasks: list[dict[str, Any]] = [
        {"name": "made up", "config": config, "seed": seed, "size": 1, "index": 0}
        for seed in (7, 8)
        for config in ({}, {"terms": 2})
    ]
    first, again = ([worker.handle_question(**task) for task in tasks] for _ in range(2))
    assert first == again
    assert made == [(task["name"], task["config"], task["seed"]) for task in tasks]
