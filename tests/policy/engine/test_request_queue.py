"""How answers find their way back, who is still waited for, and what is kept meanwhile."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from world import until

from ludus.errors import AgentError
from ludus.policy.engine import batcher
from ludus.policy.engine.batcher import Completion, RequestBatcher, SamplingParams
from ludus.policy.engine.decode_stats import DecodeStats
from ludus.policy.engine.engine_api import DeliverCompletion, IsWanted, PollRequests, Request
from ludus.policy.engine.request_queue import InFlightBatch, PendingRequest, ResultQueue
from ludus.policy.engine.scoped_settings import (
    SWITCH_INTERVAL_S,
    short_switch_interval,
    without_cudnn_sdpa,
)
from policy.forwards import request

REPLY = Completion((5,), (-0.5,), stopped=False)


def orders(number: int) -> list[PendingRequest]:
    mail = ResultQueue(asyncio.get_running_loop())
    return [PendingRequest(request((1, 2)), mail) for _ in range(number)]


async def test_answers_that_come_together_wake_the_loop_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, waiting = asyncio.get_running_loop(), orders(30)
    call, calls = loop.call_soon_threadsafe, list[Any]()

    def counted(*given: Any) -> Any:
        calls.append(given)
        return call(*given)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    for each in waiting:
        each.resolve(REPLY)
    assert await asyncio.gather(*(each.future for each in waiting)) == [REPLY] * 30
    assert len(calls) == 1
    (late,) = orders(1)
    late.resolve(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await late.future
    assert len(calls) == 2


async def test_a_party_knows_whom_it_waits_for_and_forgets_the_rest() -> None:
    first, second, third, late = orders(4)
    party = InFlightBatch([first, second, third])
    party.resolve(0, REPLY)
    second.future.cancel()
    assert [party.is_wanted(at) for at in range(4)] == [False, False, True, False]
    party.add([late])
    assert (len(party), party.unresolved, party.peak_size) == (2, [third, late], 3)
    party.resolve(1, REPLY)
    party.resolve(3, REPLY)
    assert (await first.future, await late.future) == (REPLY, REPLY)
    assert party.unresolved == [third]


class Endless:
    """An engine that answers at once, and goes on as long as it is told to."""

    def __init__(self) -> None:
        self.stats = DecodeStats()
        self.going = True
        self.interval = 0.0
        self.refreshed = 0
        self.fails = self.silent = False

    def run(
        self,
        requests: Sequence[Request],
        deliver: DeliverCompletion,
        wanted: IsWanted,
        more: PollRequests,
    ) -> None:
        self.interval, came = sys.getswitchinterval(), 0
        if self.fails:
            raise torch.OutOfMemoryError("too much")
        if self.silent:
            while wanted(0):
                time.sleep(0.001)
            return
        while requests or self.going:
            for at in range(came, came + len(requests)):
                deliver(at, REPLY)
            came += len(requests)
            requests = more(100)
            time.sleep(0.0005)

    def refresh(self) -> None:
        self.refreshed += 1


@pytest.fixture
def engine() -> Iterator[Endless]:
    made = Endless()
    yield made
    made.going = False


@pytest.fixture
def usual() -> float:
    """Python's interval when nobody decodes: a closed generator ends its last step by itself."""
    end = time.monotonic() + 20
    while (interval := sys.getswitchinterval()) <= SWITCH_INTERVAL_S:
        assert time.monotonic() < end, "something decodes that no test waits for"
        time.sleep(0.001)
    return interval


async def ask(model: RequestBatcher) -> Completion:
    return await model.sample(
        (1, 2), max_tokens=3, stop_token_ids=(), sampling=SamplingParams(), seed=0
    )


async def test_a_run_that_never_ends_keeps_nobody_who_was_answered(
    engine: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties = list[InFlightBatch]()
    made = InFlightBatch.__init__

    def noted(self: InFlightBatch, orders: Sequence[PendingRequest]) -> None:
        made(self, orders)
        parties.append(self)

    monkeypatch.setattr(InFlightBatch, "__init__", noted)
    async with RequestBatcher(None, engine=engine, batch_wait_s=0.0, max_batch=4) as model:
        for _ in range(40):
            await ask(model)
        # All of them went into one run, which still goes on.
        assert len(parties) == 1 and len(parties[0]) == 0 and parties[0].peak_size == 1


async def test_threads_take_turns_quickly_while_something_is_decoded_and_no_longer(
    engine: Endless, usual: float
) -> None:
    async with RequestBatcher(None, engine=engine, batch_wait_s=0.0) as model:
        await ask(model)
        assert engine.interval == pytest.approx(SWITCH_INTERVAL_S) == sys.getswitchinterval()
        engine.going = False
        await until(lambda: sys.getswitchinterval() == pytest.approx(usual))


def test_the_last_who_leaves_puts_back_what_was(usual: float) -> None:
    with short_switch_interval():
        with short_switch_interval():
            pass
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() == pytest.approx(usual)


async def test_attention_is_not_planned_for_a_shape_that_does_not_come_again(
    engine: Endless, usual: float
) -> None:
    planned = torch.backends.cuda.cudnn_sdp_enabled
    assert planned()
    async with RequestBatcher(None, engine=engine, batch_wait_s=0.0) as model:
        await ask(model)
        assert not planned()
        with without_cudnn_sdpa():
            engine.going = False
            await until(lambda: sys.getswitchinterval() == pytest.approx(usual))
            assert not planned()
    assert planned()


async def test_an_engine_is_at_work_as_long_as_it_gives_signs(
    engine: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RequestBatcher(None, engine=engine, batch_wait_s=0.0) as model:
        assert not model.is_working
        await ask(model)
        assert model.is_working
        monkeypatch.setattr(batcher, "STALL_TIMEOUT_S", 0.0)
        assert not model.is_working


async def test_memory_that_was_short_once_is_tried_again_after_the_model_has_learned(
    engine: Endless,
) -> None:
    engine.fails, engine.going = True, False
    async with RequestBatcher(None, engine=engine, max_batch=8) as model:
        with pytest.raises(torch.OutOfMemoryError):
            await ask(model)
        assert model.max_batch == 1
        model.refresh()
        assert (model.max_batch, engine.refreshed) == (8, 1)


async def test_whoever_asks_from_another_loop_is_told_of_the_end_too(engine: Endless) -> None:
    engine.silent, engine.going = True, False
    model, told = RequestBatcher(None, engine=engine), list[str]()

    def elsewhere() -> None:
        try:
            asyncio.run(ask(model))
        except AgentError as error:
            told.append(str(error))

    other = threading.Thread(target=elsewhere)
    other.start()
    await until(lambda: model._unanswered)
    here = asyncio.ensure_future(ask(model))
    await asyncio.sleep(0)
    await model.close()
    with pytest.raises(AgentError, match="put away"):
        await here
    await asyncio.to_thread(other.join, 10)
    assert len(told) == 1 and "put away" in told[0]
    assert not model._unanswered
