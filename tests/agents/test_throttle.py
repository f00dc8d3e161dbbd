"""The adaptive concurrency limit: order of calls, changes of the limit, pauses."""

from __future__ import annotations

import asyncio

import pytest

from ludus.agents.provider import Throttle
from ludus.errors import ConfigError


async def run_tasks() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


class Calls:
    """Calls that run until the test ends them."""

    def __init__(self, throttle: Throttle) -> None:
        self.throttle = throttle
        self.started: list[str] = []
        self.has_started = asyncio.Event()
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def wait_for_starts(self, number: int) -> None:
        """Wait until so many calls have started."""
        async with asyncio.timeout(10):
            while len(self.started) < number:
                self.has_started.clear()
                await self.has_started.wait()

    def start(self, *names: str) -> None:
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._call(name))

    async def _call(self, name: str) -> None:
        async with self.throttle.slot():
            self.started.append(name)
            self.has_started.set()
            await self.ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
        await run_tasks()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self.tasks[name].cancel()
        await run_tasks()


async def test_calls_beyond_the_limit_wait_in_order() -> None:
    calls = Calls(Throttle(2))
    calls.start("a", "b", "c", "d")
    await run_tasks()
    assert calls.started == ["a", "b"]
    await calls.end("b")
    assert calls.started == ["a", "b", "c"]
    await calls.end("a", "c", "d")
    assert calls.started == ["a", "b", "c", "d"]
    assert calls.throttle.in_flight == 0


async def test_a_new_call_does_not_overtake_waiting_ones() -> None:
    calls = Calls(Throttle(2))
    calls.throttle.pause(0.02)
    calls.start("a", "b")
    await run_tasks()
    await calls.wait_for_starts(2)
    calls.start("c", "d")
    await run_tasks()
    await calls.end("a")
    calls.start("e")
    await run_tasks()
    assert calls.started == ["a", "b", "c"]
    await calls.end("b", "c", "d", "e")
    assert calls.started == ["a", "b", "c", "d", "e"]


async def test_a_cancelled_waiter_is_skipped() -> None:
    calls = Calls(Throttle(1))
    calls.start("a", "b", "c")
    await run_tasks()
    await calls.cancel("b")
    await calls.end("a")
    assert calls.started == ["a", "c"]
    await calls.end("c")
    assert calls.throttle.in_flight == 0


async def test_a_slot_granted_to_a_call_that_is_then_cancelled_is_not_lost() -> None:
    calls = Calls(Throttle(1))
    calls.start("a", "b", "c")
    await run_tasks()
    calls.ends["a"].set()
    await asyncio.sleep(0)  # a ends and wakes b, which has not yet run.
    assert calls.started == ["a"]
    await calls.cancel("b")
    assert calls.started == ["a", "c"]
    await calls.end("c")
    assert calls.throttle.in_flight == 0


async def test_a_waiter_cancelled_before_a_slot_is_free_does_not_get_it() -> None:
    calls = Calls(Throttle(1))
    calls.start("a", "b", "c")
    await run_tasks()
    calls.ends["a"].set()
    calls.tasks["b"].cancel()  # The throttle learns of it only after it has granted a's slot.
    await run_tasks()
    assert calls.started == ["a", "c"]
    await calls.end("c")
    assert calls.throttle.in_flight == 0


async def test_a_call_that_raises_releases_its_slot() -> None:
    throttle = Throttle(1)
    with pytest.raises(RuntimeError):
        async with throttle.slot():
            raise RuntimeError
    assert throttle.in_flight == 0


async def test_overload_halves_the_limit_once_for_all_calls_in_flight() -> None:
    throttle = Throttle(16)
    async with throttle.slot() as one, throttle.slot() as two:
        throttle.decrease(one)
        throttle.decrease(two)
        assert throttle.limit == 8
        async with throttle.slot() as later:
            throttle.decrease(later)
            assert throttle.limit == 4
        throttle.decrease(one)
        assert throttle.limit == 4


async def test_the_limit_never_falls_below_one() -> None:
    throttle = Throttle(3)
    for _ in range(5):
        async with throttle.slot() as epoch:
            throttle.decrease(epoch)
    assert throttle.limit == 1


async def test_the_limit_rises_by_one_per_round_of_successes_up_to_the_maximum() -> None:
    throttle = Throttle(8)
    async with throttle.slot() as epoch:
        throttle.decrease(epoch)
        assert throttle.limit == 4
        for _ in range(5):
            throttle.increase()
        assert throttle.limit == 5
        for _ in range(100):
            throttle.increase()
        assert throttle.limit == 8


async def test_after_a_decrease_calls_wait_until_enough_have_ended() -> None:
    calls = Calls(Throttle(4))
    async with calls.throttle.slot() as epoch:
        calls.start("a", "b", "c", "d")
        await run_tasks()
        assert calls.started == ["a", "b", "c"]
        calls.throttle.decrease(epoch)
    await run_tasks()
    assert calls.started == ["a", "b", "c"]
    await calls.end("a")
    assert calls.started == ["a", "b", "c"]
    await calls.end("b")
    assert calls.started == ["a", "b", "c", "d"]
    await calls.end("c", "d")


async def test_calls_start_only_after_a_pause() -> None:
    throttle = Throttle(4)
    calls = Calls(throttle)
    throttle.pause(0.05)
    throttle.pause(0.01)  # A shorter one does not end it.
    calls.start("a", "b")
    await run_tasks()
    assert calls.started == [] and 0.01 < throttle.pause_remaining_s <= 0.05
    await calls.wait_for_starts(2)
    assert throttle.pause_remaining_s == 0
    await calls.end("a", "b")


async def test_a_longer_pause_extends_one_that_calls_wait_for() -> None:
    now = [0.0]
    throttle = Throttle(4, clock=lambda: now[0])
    throttle.pause(0.001)
    calls = Calls(throttle)
    calls.start("a")
    await run_tasks()
    throttle.pause(0.002)
    now[0] = 0.001
    await asyncio.sleep(0.02)
    assert calls.started == []
    now[0] = 0.002
    await calls.wait_for_starts(1)
    await calls.end("a")


async def test_a_pause_does_not_affect_calls_in_flight() -> None:
    calls = Calls(Throttle(1))
    calls.start("a", "b")
    await run_tasks()
    calls.throttle.pause(0.02)
    await calls.end("a")
    assert calls.throttle.in_flight == 0 and calls.started == ["a"]
    await calls.wait_for_starts(2)
    await calls.end("b")


async def test_the_real_clock_ends_a_pause() -> None:
    throttle = Throttle(1)
    throttle.pause(0.02)
    start = asyncio.get_running_loop().time()
    async with throttle.slot():
        assert asyncio.get_running_loop().time() - start >= 0.019


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="concurrency"):
        Throttle(0)
