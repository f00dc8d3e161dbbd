"""Requests of many coroutines become batches; what happens to one of them costs no other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from world import until, wait_until

from ludus.errors import AgentError
from ludus.policy.engine.batcher import RequestBatcher, SamplingParams
from ludus.policy.engine.engine_api import (
    Completion,
    DeliverCompletion,
    IsWanted,
    PollRequests,
    Request,
)
from ludus.policy.engine.hf_decoder import HFDecoder
from policy.forwards import answers, model_of, prompt, request

TESTS = Path(__file__).parents[2]


class Watched:
    """The real decoder, which can be held up and made to fail."""

    def __init__(self, *, fails: Any = lambda requests: None) -> None:
        self.batches: list[list[int]] = []
        self.free = threading.Event()
        self.free.set()
        self.steps = 0
        self._fails = fails
        self._decoder = HFDecoder(model_of("llama"), pad_id=0)
        self.stats = self._decoder.stats

    def refresh(self) -> None:
        self._decoder.refresh()

    def run(
        self,
        requests: Sequence[Request],
        deliver: DeliverCompletion,
        wanted: IsWanted,
        more: PollRequests,
    ) -> None:
        self.batches.append([request.seed for request in requests])
        assert self.free.wait(30)
        error = self._fails(requests)
        if error is not None:
            raise error

        def counted(at: int) -> bool:
            self.steps += 1
            return wanted(at)

        self._decoder.run(requests, deliver, counted)


def generator(engine: Watched | None = None, **more: Any) -> RequestBatcher:
    return RequestBatcher(model_of("llama"), pad_id=0, engine=engine, **more)


async def ask(model: RequestBatcher, seed: int, *, length: int = 5, **more: Any) -> Completion:
    given: dict[str, Any] = {"max_tokens": 6, "stop_token_ids": (1,), "sampling": SamplingParams()}
    return await model.sample(prompt(length), seed=seed, **(given | more))


async def together(engine: Watched, model: RequestBatcher, number: int) -> list[Any]:
    """What becomes of so many that have all come while another was being answered."""
    before = len(engine.batches)
    engine.free.clear()
    first = asyncio.ensure_future(ask(model, 99))
    await until(lambda: len(engine.batches) > before)
    others = [asyncio.ensure_future(ask(model, seed)) for seed in range(number)]
    await asyncio.sleep(0)
    engine.free.set()
    await first
    return await asyncio.gather(*others, return_exceptions=True)


async def test_what_is_asked_at_once_is_one_batch_and_each_gets_its_own_reply() -> None:
    engine = Watched()
    async with generator(engine, batch_wait_s=1.0) as model:
        said = await asyncio.gather(*(ask(model, seed) for seed in range(20)))
    assert engine.batches == [list(range(20))]
    alone = [answers(model_of("llama"), [request(prompt(5), seed=n, max_tokens=6)])[0].ids
             for n in range(20)]  # fmt: skip
    assert [reply.ids for reply in said] == alone and len({*alone}) > 10


async def test_what_comes_meanwhile_is_the_next_batch_and_none_is_too_large() -> None:
    engine = Watched()
    engine.free.clear()
    async with generator(engine, max_batch=4) as model:
        first = asyncio.ensure_future(ask(model, 0))
        await until(lambda: engine.batches)
        rest = [asyncio.ensure_future(ask(model, seed)) for seed in range(1, 10)]
        await asyncio.sleep(0)
        engine.free.set()
        await asyncio.gather(first, *rest)
    assert [len(batch) for batch in engine.batches] == [1, 4, 4, 1]


async def test_prompts_of_like_length_go_together_and_the_oldest_first() -> None:
    engine = Watched()
    engine.free.clear()
    async with generator(engine, max_batch=2) as model:
        asked = [asyncio.ensure_future(ask(model, 0))]
        await until(lambda: engine.batches)
        lengths = (9, 30, 10, 31)
        asked += [asyncio.ensure_future(ask(model, n, length=n)) for n in lengths]
        await asyncio.sleep(0)
        engine.free.set()
        await asyncio.gather(*asked)
    assert engine.batches == [[0], [9, 10], [30, 31]]


async def test_a_request_that_was_cancelled_is_left_out() -> None:
    engine = Watched()
    engine.free.clear()
    async with generator(engine) as model:
        busy = asyncio.ensure_future(ask(model, 0))
        await until(lambda: engine.batches)
        gone, kept = (asyncio.ensure_future(ask(model, seed)) for seed in (1, 2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        engine.free.set()
        await asyncio.gather(busy, kept)
    assert engine.batches == [[0], [2]] and gone.cancelled()


async def test_what_fails_reaches_the_one_whose_fault_it_is() -> None:
    def fails(requests: Sequence[Request]) -> Exception | None:
        return ValueError("seven") if any(request.seed == 7 for request in requests) else None

    engine = Watched(fails=fails)
    async with generator(engine) as model:
        said = await asyncio.gather(*(ask(model, n) for n in range(10)), return_exceptions=True)
        after = await ask(model, 11)
    assert [n for n, reply in enumerate(said) if not isinstance(reply, Completion)] == [7]
    assert str(said[7]) == "seven" and after.ids


async def test_a_model_that_breaks_down_midway_loses_nothing_for_the_others() -> None:
    broken = model_of("llama")
    calls = 0

    def fail_once(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("out of order")

    watch = broken.register_forward_pre_hook(fail_once)
    try:
        async with generator() as model:
            said = await asyncio.gather(*(ask(model, n) for n in range(6)))
    finally:
        watch.remove()
    expected = answers(broken, [request(prompt(5), seed=n, max_tokens=6) for n in range(6)])
    assert [reply.ids for reply in said] == [reply.ids for reply in expected]


async def test_what_fails_in_both_halves_is_said_to_all_and_not_tried_further() -> None:
    def fails(requests: Sequence[Request]) -> Exception | None:
        return ValueError("never together") if len(requests) > 1 else None

    engine = Watched(fails=fails)
    async with generator(engine) as model:
        said = await together(engine, model, 8)
    assert [str(reply) for reply in said] == ["never together"] * 8
    assert [len(batch) for batch in engine.batches] == [1, 8, 4, 4]


async def test_a_batch_for_which_memory_does_not_reach_is_halved() -> None:
    def fails(requests: Sequence[Request]) -> Exception | None:
        return torch.OutOfMemoryError("too much") if len(requests) > 4 else None

    engine = Watched(fails=fails)
    async with generator(engine) as model:
        for _ in range(2):
            said = await together(engine, model, 8)
            assert all(isinstance(reply, Completion) for reply in said)
    sizes = [len(batch) for batch in engine.batches]
    assert sizes == [1, 8, 4, 4, 1, 4, 4], "and the next batch is not tried in vain"


async def test_logits_that_are_no_numbers_are_an_error_and_no_reply() -> None:
    watch = model_of("llama").lm_head.register_forward_hook(lambda *given: given[2] * torch.nan)
    try:
        async with generator() as model:
            with pytest.raises(ValueError, match="no numbers"):
                await ask(model, 0)
    finally:
        watch.remove()


async def test_close_waits_for_nothing_and_the_thread_ends_at_its_next_token() -> None:
    engine = Watched()
    engine.free.clear()
    model = generator(engine)
    asked = asyncio.ensure_future(ask(model, 0, max_tokens=50, stop_token_ids=()))
    await until(lambda: engine.batches)
    await model.close()
    await model.close()
    with pytest.raises(AgentError, match="put away"):
        await asked
    engine.free.set()
    wait_until(lambda: all(thread.name != "ludus-model" for thread in threading.enumerate()))
    assert engine.steps == 1
    with pytest.raises(AgentError, match="put away"):
        await ask(model, 1)


def test_a_process_ends_though_nobody_closed_the_model() -> None:
    code = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from policy.forwards import model_of, prompt
from ludus.policy.engine.batcher import RequestBatcher, SamplingParams

async def main():
    model = RequestBatcher(model_of("llama"), pad_id=0)
    sampling = SamplingParams()
    async with asyncio.timeout(0.2):
        while True:
            await model.sample(prompt(4), max_tokens=50, stop_token_ids=(), sampling=sampling, seed=0)

try:
    asyncio.run(main())
except TimeoutError:
    print("left")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(TESTS)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")
