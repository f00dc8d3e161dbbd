"""The browsers of browsergym: hung, crashed, left behind, shared, or not there."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from browser import needs_chromium
from ludus_process import run_ludus
from world import wait_until

from envs.browser_play import call, only, open_environment, play_oracle
from ludus.client.session import LocalSession
from ludus.environment.introspection import build_env_spec
from ludus.envs.browsergym import BrowserGym
from ludus.envs.browsergym.worker import (
    EXECUTABLE_VARIABLE,
    BrowserFailed,
    browser_pool,
)
from ludus.errors import ExecutionFailed

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def environment() -> Iterator[BrowserGym]:
    with open_environment() as environment:
        yield environment


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def browser_processes(environment: BrowserGym) -> list[psutil.Process]:
    assert environment._worker is not None
    below: list[psutil.Process] = psutil.Process(environment._worker.pid).children(recursive=True)
    return below


def test_a_hung_browser_breaks_only_its_own_episode(
    environment: BrowserGym, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.reset(seed=1, task_name="click-test")
    hung = BrowserGym()
    hung.reset(seed=1, task_name="click-test")
    processes = browser_processes(hung)
    for process in processes:
        process.suspend()
    monkeypatch.setattr("ludus.envs.browsergym.environment.CALL_TIMEOUT_S", 1.0)
    with pytest.raises(BrowserFailed, match="did not answer"):
        hung.click("13")
    with pytest.raises(BrowserFailed):
        hung.click("13")
    assert all(is_gone(process.pid) for process in processes)
    monkeypatch.undo()
    assert call(environment, "click", bid=only(environment, "button").bid).reward == 1.0
    # A retry gets another browser.
    assert play_oracle(hung, "click-test", seed=1)[-1].reward == 1.0
    hung.close()


@pytest.mark.slow
def test_a_crashed_browser_is_a_fault_and_no_reward() -> None:
    async def play() -> float | None:
        session = LocalSession(build_env_spec(BrowserGym, name="browsergym"))
        async with session:
            await session.reset(seed=1, task_name="click-test")
            for process in browser_processes(session.runner.environment):
                if "chrom" in process.name():
                    process.kill()
            with pytest.raises(ExecutionFailed, match="browser"):
                await session.call("click", {"bid": "13"})
            await session.reset(seed=1, task_name="click-test")
            return (await session.call("click", {"bid": "13"})).reward

    assert asyncio.run(play()) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "then",
    [
        pytest.param("sys.stdin.read()", id="idle", marks=pytest.mark.slow),
        pytest.param("while True: environment.noop()", id="busy"),
    ],
)
def test_nothing_is_left_behind_when_the_parent_is_killed(then: str) -> None:
    program = (
        "import sys\n"
        "from ludus.envs.browsergym import BrowserGym\n"
        "environment = BrowserGym()\n"
        "environment.reset(seed=1, max_actions=10**6)\n"
        "print(environment._worker.pid, environment._worker.folder, flush=True)\n"
        f"{then}\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        worker = psutil.Process(int(pid))
        pids = [worker.pid, *(each.pid for each in worker.children(recursive=True))]
        assert len(pids) > 3 and Path(folder).is_dir()
        time.sleep(0.5)  # Any moment will do; the busy one is in the middle of a request.
        os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, pids)) and not Path(folder).exists(), seconds=60)


def test_an_idle_browser_is_used_again() -> None:
    pool = browser_pool()
    worker = pool.lend()
    pool.give_back(worker)
    assert pool.lend() is worker
    pool.give_back(worker)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_sessions_play_at_once() -> None:
    async def play(number: int) -> list[float | None]:
        rewards: list[float | None] = []
        async with LocalSession(build_env_spec(BrowserGym, name="browsergym")) as session:
            for seed in range(5):
                result = await session.reset(seed=seed, task_name="click-checkboxes")
                while not result.done:
                    action = await session.runner.call_method("oracle")
                    result = await session.call(action.name, action.arguments)
                rewards.append(result.reward)
        return rewards

    async def play_all() -> list[list[float | None]]:
        return await asyncio.gather(*map(play, range(4)))

    assert asyncio.run(play_all()) == [[1.0] * 5] * 4
    browser_pool().end_idle()


@pytest.mark.parametrize("arguments", [("serve", "--port", "0"), ("check",)])
def test_a_browser_that_does_not_exist_is_refused_in_words(arguments: tuple[str, ...]) -> None:
    spec = "ludus.envs.browsergym:BrowserGym"
    done = run_ludus(arguments[0], spec, *arguments[1:], env={EXECUTABLE_VARIABLE: "/nowhere/x"})
    printed = done.stdout + done.stderr
    assert done.returncode == 1 and "'/nowhere/x'" in printed and EXECUTABLE_VARIABLE in printed
    assert "worker.py" not in printed and "BrowserMissing" not in printed
