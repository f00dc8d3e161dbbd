"""How many calls at once: who goes first, and how the level moves. Time is moved by hand."""

import asyncio
from collections.abc import Callable

import pytest

from ludus.agents.throttle import Throttle
from ludus.errors import ConfigError


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        self.timers.append((self.now + delay, callback))

    def move(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, callback in due:
            callback()


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


class Calls:
    """Calls that stay under way until they are told to end."""

    def __init__(self, throttle: Throttle) -> None:
        self.throttle = throttle
        self.began: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, *names: str) -> None:
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._call(name))

    async def _call(self, name: str) -> None:
        async with self.throttle.slot():
            self.began.append(name)
            await self.ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
        await settle()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self.tasks[name].cancel()
        await settle()


async def test_no_more_calls_begin_than_the_ceiling_and_the_first_come_goes_first() -> None:
    calls = Calls(Throttle(2))
    calls.start("a", "b", "c", "d")
    await settle()
    assert calls.began == ["a", "b"]
    await calls.end("b")
    assert calls.began == ["a", "b", "c"]
    await calls.end("a", "c", "d")
    assert calls.began == ["a", "b", "c", "d"]
    assert calls.throttle.in_flight == 0


async def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    clock = Hands()
    calls = Calls(Throttle(1, clock=clock))
    calls.throttle.pause(10)
    calls.start("a")
    await settle()
    clock.now = 10.0  # the pause is over, and its timer has not gone off yet
    calls.start("b")
    await settle()
    assert calls.began == ["a"]
    await calls.end("a", "b")
    assert calls.began == ["a", "b"]


async def test_a_waiter_that_is_cancelled_leaves_its_place_to_the_next() -> None:
    calls = Calls(Throttle(1))
    calls.start("a", "b", "c")
    await settle()
    await calls.cancel("b")
    await calls.end("a")
    assert calls.began == ["a", "c"]
    await calls.end("c")
    assert calls.throttle.in_flight == 0


async def test_a_slot_given_to_a_call_in_the_instant_it_is_cancelled_is_not_lost() -> None:
    calls = Calls(Throttle(1))
    calls.start("a", "b", "c")
    await settle()
    calls.ends["a"].set()
    await asyncio.sleep(0)  # a goes and hands its slot to b, which has not yet run
    assert len(calls.throttle._waiters) == 1
    assert calls.began == ["a"]
    await calls.cancel("b")
    assert calls.began == ["a", "c"]
    await calls.end("c")
    assert calls.throttle.in_flight == 0


async def test_a_waiter_cancelled_before_a_slot_is_free_does_not_take_it() -> None:
    calls = Calls(Throttle(1))
    calls.start("a", "b", "c")
    await settle()
    calls.ends["a"].set()
    calls.tasks["b"].cancel()  # known to the throttle only after a's slot is given on
    await settle()
    assert calls.began == ["a", "c"]
    await calls.end("c")
    assert calls.throttle.in_flight == 0


async def test_a_call_that_raises_gives_its_slot_back() -> None:
    throttle = Throttle(1)
    with pytest.raises(RuntimeError):
        async with throttle.slot():
            raise RuntimeError
    assert throttle.in_flight == 0


async def test_pushback_halves_the_level_once_for_all_calls_that_were_under_way() -> None:
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


async def test_the_level_never_falls_below_one() -> None:
    throttle = Throttle(3)
    for _ in range(5):
        async with throttle.slot() as slot:
            slot.report_overload()
    assert throttle.limit == 1


async def test_the_level_rises_by_one_per_round_of_successes_and_stops_at_the_ceiling() -> None:
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


async def test_after_a_fall_nobody_begins_until_there_is_room_again() -> None:
    calls = Calls(Throttle(4))
    async with calls.throttle.slot() as slot:
        calls.start("a", "b", "c", "d")
        await settle()
        assert calls.began == ["a", "b", "c"]
        slot.report_overload()
    await settle()
    assert calls.began == ["a", "b", "c"]
    await calls.end("a")
    assert calls.began == ["a", "b", "c"]
    await calls.end("b")
    assert calls.began == ["a", "b", "c", "d"]
    await calls.end("c", "d")


async def test_during_a_pause_nobody_begins_and_after_it_everybody_does() -> None:
    clock = Hands()
    calls = Calls(Throttle(4, clock=clock))
    calls.throttle.pause(10)
    calls.start("a", "b")
    await settle()
    clock.move(9.9)
    await settle()
    assert calls.began == []
    clock.move(0.1)
    await settle()
    assert calls.began == ["a", "b"]
    await calls.end("a", "b")


async def test_a_pause_is_prolonged_by_a_longer_one_and_not_ended_by_a_shorter_one() -> None:
    clock = Hands()
    calls = Calls(Throttle(4, clock=clock))
    calls.throttle.pause(10)
    calls.start("a")
    await settle()
    calls.throttle.pause(20)
    calls.throttle.pause(1)
    clock.move(10)
    await settle()
    assert calls.began == []
    clock.move(10)
    await settle()
    assert calls.began == ["a"]
    await calls.end("a")


async def test_a_call_that_is_under_way_is_not_touched_by_a_pause() -> None:
    clock = Hands()
    calls = Calls(Throttle(1, clock=clock))
    calls.start("a", "b")
    await settle()
    calls.throttle.pause(5)
    await calls.end("a")
    assert calls.throttle.in_flight == 0 and calls.began == ["a"]
    clock.move(5)
    await settle()
    assert calls.began == ["a", "b"]
    await calls.end("b")


async def test_the_real_clock_ends_a_pause() -> None:
    throttle = Throttle(1)
    throttle.pause(0.02)
    began = asyncio.get_running_loop().time()
    async with throttle.slot():
        assert asyncio.get_running_loop().time() - began >= 0.019


def test_a_ceiling_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Throttle(0)
