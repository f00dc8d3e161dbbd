"""Batching of concurrent requests, and isolation of failing ones."""

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
from policy.forwards import complete, model_of, prompt, request
from policy.triton_engine.tiny_models import build_engine, shared_model

TESTS = Path(__file__).parents[2]


class ControlledEngine:
    """The real decoder, which can be paused and made to fail."""

    def __init__(self, *, fails: Any = lambda requests: None) -> None:
        self.batches: list[list[int]] = []
        self.released = threading.Event()
        self.released.set()
        self.steps = 0
        self._fails = fails
        self._decoder = HFDecoder(model_of("llama"), pad_id=0)
        self.stats = self._decoder.stats

    def refresh(self) -> None:
        self._decoder.refresh()

    def free_cache(self, *, larger_than: int = 0) -> None: ...

    def run(
        self,
        requests: Sequence[Request],
        deliver: DeliverCompletion,
        is_wanted: IsWanted,
        poll_requests: PollRequests,
    ) -> None:
        self.batches.append([request.seed for request in requests])
        assert self.released.wait(30)
        error = self._fails(requests)
        if error is not None:
            raise error

        def count_steps(index: int) -> bool:
            self.steps += 1
            return is_wanted(index)

        self._decoder.run(requests, deliver, count_steps)


def build_batcher(engine: ControlledEngine | None = None, **kwargs: Any) -> RequestBatcher:
    return RequestBatcher(engine or HFDecoder(model_of("llama"), pad_id=0), **kwargs)


async def sample(
    batcher: RequestBatcher, seed: int, *, length: int = 5, **kwargs: Any
) -> Completion:
    defaults: dict[str, Any] = {
        "max_tokens": 6,
        "stop_token_ids": (1,),
        "sampling": SamplingParams(),
    }
    return await batcher.sample(prompt(length), seed=seed, **(defaults | kwargs))


async def sample_while_busy(
    engine: ControlledEngine, batcher: RequestBatcher, number: int
) -> list[Any]:
    """Sample many requests that all arrive while the engine is busy with another."""
    before = len(engine.batches)
    engine.released.clear()
    first = asyncio.ensure_future(sample(batcher, 99))
    await until(lambda: len(engine.batches) > before)
    others = [asyncio.ensure_future(sample(batcher, seed)) for seed in range(number)]
    await asyncio.sleep(0)
    engine.released.set()
    await first
    return await asyncio.gather(*others, return_exceptions=True)


async def test_concurrent_requests_form_one_batch_and_each_gets_its_own_reply() -> None:
    engine = ControlledEngine()
    async with build_batcher(engine, batch_wait_s=1.0) as batcher:
        replies = await asyncio.gather(*(sample(batcher, seed) for seed in range(20)))
    assert engine.batches == [list(range(20))]
    alone = [complete(model_of("llama"), [request(prompt(5), seed=n, max_tokens=6)])[0].ids
             for n in range(20)]  # fmt: skip
    assert [reply.ids for reply in replies] == alone and len({*alone}) > 10


async def test_later_requests_wait_for_the_next_batch_and_max_batch_holds() -> None:
    engine = ControlledEngine()
    engine.released.clear()
    async with build_batcher(engine, max_batch=4) as batcher:
        first = asyncio.ensure_future(sample(batcher, 0))
        await until(lambda: engine.batches)
        rest = [asyncio.ensure_future(sample(batcher, seed)) for seed in range(1, 10)]
        await asyncio.sleep(0)
        engine.released.set()
        await asyncio.gather(first, *rest)
    assert [len(batch) for batch in engine.batches] == [1, 4, 4, 1]


async def test_prompts_of_similar_length_share_a_batch_oldest_first() -> None:
    engine = ControlledEngine()
    engine.released.clear()
    async with build_batcher(engine, max_batch=2) as batcher:
        tasks = [asyncio.ensure_future(sample(batcher, 0))]
        await until(lambda: engine.batches)
        lengths = (9, 30, 10, 31)
        tasks += [asyncio.ensure_future(sample(batcher, n, length=n)) for n in lengths]
        await asyncio.sleep(0)
        engine.released.set()
        await asyncio.gather(*tasks)
    assert engine.batches == [[0], [9, 10], [30, 31]]


async def test_cancelled_requests_are_not_decoded() -> None:
    engine = ControlledEngine()
    engine.released.clear()
    async with build_batcher(engine) as batcher:
        busy = asyncio.ensure_future(sample(batcher, 0))
        await until(lambda: engine.batches)
        cancelled, kept = (asyncio.ensure_future(sample(batcher, seed)) for seed in (1, 2))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
        engine.released.set()
        await asyncio.gather(busy, kept)
    assert engine.batches == [[0], [2]] and cancelled.cancelled()


async def test_an_error_reaches_only_the_request_that_causes_it() -> None:
    def fails(requests: Sequence[Request]) -> Exception | None:
        return ValueError("bad request") if any(request.seed == 7 for request in requests) else None

    engine = ControlledEngine(fails=fails)
    async with build_batcher(engine) as batcher:
        replies = await asyncio.gather(
            *(sample(batcher, n) for n in range(10)), return_exceptions=True
        )
        after = await sample(batcher, 11)
    assert [n for n, reply in enumerate(replies) if not isinstance(reply, Completion)] == [7]
    assert str(replies[7]) == "bad request" and after.ids


async def test_requests_are_retried_after_a_transient_error() -> None:
    broken = model_of("llama")
    calls = 0

    def fail_once(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("out of order")

    hook = broken.register_forward_pre_hook(fail_once)
    try:
        async with build_batcher() as batcher:
            replies = await asyncio.gather(*(sample(batcher, n) for n in range(6)))
    finally:
        hook.remove()
    expected = complete(broken, [request(prompt(5), seed=n, max_tokens=6) for n in range(6)])
    assert [reply.ids for reply in replies] == [reply.ids for reply in expected]


async def test_an_error_of_all_requests_is_reported_to_all() -> None:
    engine = ControlledEngine(fails=lambda requests: ValueError("broken"))
    async with build_batcher(engine) as batcher:
        replies = await asyncio.gather(
            *(sample(batcher, n) for n in range(4)), return_exceptions=True
        )
    assert [str(reply) for reply in replies] == ["broken"] * 4


async def test_a_batch_that_runs_out_of_memory_is_halved() -> None:
    def fails(requests: Sequence[Request]) -> Exception | None:
        return torch.OutOfMemoryError("too much") if len(requests) > 4 else None

    engine = ControlledEngine(fails=fails)
    async with build_batcher(engine) as batcher:
        for _ in range(2):
            replies = await sample_while_busy(engine, batcher, 8)
            assert all(isinstance(reply, Completion) for reply in replies)
    sizes = [len(batch) for batch in engine.batches]
    assert sizes == [1, 8, 4, 4, 1, 4, 4], "the next batch is small enough at once"


async def test_nan_logits_raise() -> None:
    hook = model_of("llama").lm_head.register_forward_hook(lambda *given: given[2] * torch.nan)
    try:
        async with build_batcher() as batcher:
            with pytest.raises(ValueError, match="not finite"):
                await sample(batcher, 0)
    finally:
        hook.remove()


async def test_close_returns_at_once_and_the_thread_ends_after_its_current_token() -> None:
    engine = ControlledEngine()
    engine.released.clear()
    batcher = build_batcher(engine)
    task = asyncio.ensure_future(sample(batcher, 0, max_tokens=50, stop_token_ids=()))
    await until(lambda: engine.batches)
    await batcher.close()
    await batcher.close()
    with pytest.raises(AgentError, match="was closed"):
        await task
    engine.released.set()
    wait_until(lambda: all(thread.name != "ludus-model" for thread in threading.enumerate()))
    assert engine.steps == 1
    with pytest.raises(AgentError, match="was closed"):
        await sample(batcher, 1)


def run_program(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(TESTS)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_exit_waits_until_the_thread_of_a_closed_batcher_has_freed_the_engine() -> None:
    code = """
import asyncio, threading, time
from ludus.policy.engine.batcher import RequestBatcher, SamplingParams
from ludus.policy.engine.engine_api import DecodeStats
from ludus.policy.engine.engine_api import Completion

closed, freeing = threading.Event(), threading.Event()

class Engine:
    stats = DecodeStats()

    def run(self, requests, deliver, is_wanted, poll_requests):
        deliver(0, Completion((), (), stopped=True))
        closed.wait()

    def __del__(self):
        freeing.set()
        time.sleep(0.5)  # Without the interpreter's lock, like torch when it frees CUDA graphs.
        print("freed", flush=True)

async def main():
    batcher = RequestBatcher(Engine())
    await batcher.sample((1,), max_tokens=1, stop_token_ids=(), sampling=SamplingParams(), seed=0)
    await batcher.close()

asyncio.run(main())
closed.set()
freeing.wait()
"""
    done = run_program(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "freed\n", "")


@pytest.mark.slow
def test_a_process_exits_cleanly_without_close() -> None:
    code = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from policy.forwards import model_of, prompt
from ludus.policy.engine.batcher import RequestBatcher, SamplingParams
from ludus.policy.engine.hf_decoder import HFDecoder

async def main():
    batcher = RequestBatcher(HFDecoder(model_of("llama"), pad_id=0))
    sampling = SamplingParams()
    async with asyncio.timeout(0.2):
        while True:
            await batcher.sample(
                prompt(4), max_tokens=50, stop_token_ids=(), sampling=sampling, seed=0
            )

try:
    asyncio.run(main())
except TimeoutError:
    print("left")
"""
    done = run_program(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


@pytest.mark.parametrize("fast", [False, True])
async def test_tokens_arrive_in_order_before_their_completion(fast: bool) -> None:
    engine = build_engine(shared_model()) if fast else HFDecoder(model_of("llama"), pad_id=0)
    received: list[tuple[int, float]] = []

    def receive(ids: Sequence[int], logprobs: Sequence[float]) -> None:
        assert not done
        received.extend(zip(ids, logprobs, strict=True))

    done = False
    async with RequestBatcher(engine) as batcher:
        completion = await batcher.sample(
            prompt(5),
            max_tokens=20,
            stop_token_ids=(),
            sampling=SamplingParams(),
            seed=1,
            receive_tokens=receive,
        )
        done = True
    assert received == list(zip(completion.ids, completion.logprobs, strict=True))
    assert len(received) == 20


async def test_a_retried_request_does_not_report_its_tokens_twice() -> None:
    failures = [torch.OutOfMemoryError("once")]

    class FailsLate(ControlledEngine):
        """Fails after it has sampled all tokens of its first batch."""

        def run(
            self,
            requests: Sequence[Request],
            deliver: DeliverCompletion,
            is_wanted: IsWanted,
            poll_requests: PollRequests,
        ) -> None:
            results: list[tuple[int, Completion]] = []
            super().run(requests, lambda *each: results.append(each), is_wanted, poll_requests)
            if failures:
                raise failures.pop()
            for index, completion in results:
                deliver(index, completion)

    received: list[int] = []
    async with RequestBatcher(FailsLate()) as batcher:
        both = [
            batcher.sample(
                prompt(5),
                max_tokens=6,
                stop_token_ids=(),
                sampling=SamplingParams(),
                seed=seed,
                receive_tokens=(lambda ids, logprobs: received.extend(ids)) if not seed else None,
            )
            for seed in range(2)
        ]
        completion, _ = await asyncio.gather(*both)
    assert tuple(received) == completion.ids
