"""Async code for callers that do not await."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from ludus.client.event_loop import run_sync, to_sync


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_a_coroutine_runs_to_its_result() -> None:
    assert run_sync(double(21)) == 42
    assert to_sync(double)(number=4) == 8


async def test_it_works_where_a_loop_is_running_already() -> None:
    assert run_sync(double(21)) == 42


def test_errors_arrive() -> None:
    async def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError):
        run_sync(fail())


def test_many_threads_share_the_loop() -> None:
    loops: set[int] = set()

    async def note() -> None:
        loops.add(id(asyncio.get_running_loop()))

    threads = [threading.Thread(target=lambda: run_sync(note())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loops) == 1


INTERRUPTED = """
import asyncio
from ludus.client.event_loop import run_sync

async def work():
    try:
        print("working", flush=True)
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        print("cleaned up", flush=True)

try:
    run_sync(work())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_an_interrupt_cancels_the_work_and_waits_until_it_has_cleaned_up() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        text=True,
        # Where the tests run in the background, interrupts are ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None and process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert output.splitlines() == ["cleaned up", "interrupted"]


def test_the_loop_survives_a_coroutine_that_exits() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        run_sync(leave())
    assert run_sync(double(21)) == 42


def test_a_synchronous_call_on_the_loop_raises_instead_of_waiting_for_itself() -> None:
    async def call_sync() -> int:
        return run_sync(double(21))

    with pytest.raises(RuntimeError, match="blocking"):
        run_sync(call_sync())
