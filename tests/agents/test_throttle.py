"""The adaptive concurrency limit: order of calls, changes of the limit, pauses."""

import asyncio
from collections.abc import Callable

import pytest

from ludus.agents.throttle import Throttle
from ludus.errors import ConfigError


class FakeClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        self.timers.append((self.now + delay, callback))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, callback in due:
            callback()


async def run_tasks() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


class Calls:
    """Calls that run until the test ends them."""

    def __init__(self, throttle: Throttle) -> None:
        self.throttle = throttle
        self.started: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, *names: str) -> None:
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._call(name))

    async def _call(self, name: str) -> None:
        async with self.throttle.slot():
            self.started.append(name)
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
    clock = FakeClock()
    calls = Calls(Throttle(1, clock=clock))
    calls.throttle.pause(10)
    calls.start("a")
    await run_tasks()
    clock.now = 10.0  # The pause is over, but its timer has not fired yet.
    calls.start("b")
    await run_tasks()
    assert calls.started == ["a"]
    await calls.end("a", "b")
    assert calls.started == ["a", "b"]


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
    await asyncio.sleep(0)  # a ends and grants its slot to b, which has not yet run.
    assert len(calls.throttle._waiters) == 1
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
        one.report_overload()
        two.report_overload()
        assert throttle.limit == 8
        async with throttle.slot() as later:
            later.report_overload()
            assert throttle.limit == 4
        one.report_overload()
        assert throttle.limit == 4


async def test_the_limit_never_falls_below_one() -> None:
    throttle = Throttle(3)
    for _ in range(5):
        async with throttle.slot() as slot:
            slot.report_overload()
    assert throttle.limit == 1


async def test_the_limit_rises_by_one_per_round_of_successes_up_to_the_maximum() -> None:
    throttle = Throttle(8)
    async with throttle.slot() as slot:
        slot.report_overload()
        assert throttle.limit == 4
        for _ in range(5):
            slot.report_success()
        assert throttle.limit == 5
        for _ in range(100):
            slot.report_success()
        assert throttle.limit == 8


async def test_after_a_decrease_calls_wait_until_enough_have_ended() -> None:
    calls = Calls(Throttle(4))
    async with calls.throttle.slot() as slot:
        calls.start("a", "b", "c", "d")
        await run_tasks()
        assert calls.started == ["a", "b", "c"]
        slot.report_overload()
    await run_tasks()
    assert calls.started == ["a", "b", "c"]
    await calls.end("a")
    assert calls.started == ["a", "b", "c"]
    await calls.end("b")
    assert calls.started == ["a", "b", "c", "d"]
    await calls.end("c", "d")


async def test_calls_start_only_after_a_pause() -> None:
    clock = FakeClock()
    calls = Calls(Throttle(4, clock=clock))
    calls.throttle.pause(10)
    calls.start("a", "b")
    await run_tasks()
    clock.advance(9.9)
    await run_tasks()
    assert calls.started == []
    clock.advance(0.1)
    await run_tasks()
    assert calls.started == ["a", "b"]
    await calls.end("a", "b")


async def test_a_longer_pause_extends_and_a_shorter_one_does_not_end_a_pause() -> None:
    clock = FakeClock()
    calls = Calls(Throttle(4, clock=clock))
    calls.throttle.pause(10)
    calls.start("a")
    await run_tasks()
    calls.throttle.pause(20)
    calls.throttle.pause(1)
    clock.advance(10)
    await run_tasks()
    assert calls.started == []
    clock.advance(10)
    await run_tasks()
    assert calls.started == ["a"]
    await calls.end("a")


async def test_a_pause_does_not_affect_calls_in_flight() -> None:
    clock = FakeClock()
    calls = Calls(Throttle(1, clock=clock))
    calls.start("a", "b")
    await run_tasks()
    calls.throttle.pause(5)
    await calls.end("a")
    assert calls.throttle.in_flight == 0 and calls.started == ["a"]
    clock.advance(5)
    await run_tasks()
    assert calls.started == ["a", "b"]
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
