"""Delivery of results to event loops, and settings while decoding."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakSet

import pytest
import torch
from world import until

from ludus.errors import AgentError
from ludus.policy.engine import batcher as batcher_module
from ludus.policy.engine.batcher import (
    BatchedRequest,
    Completion,
    RequestBatcher,
    SamplingParams,
)
from ludus.policy.engine.engine_api import (
    DecodeStats,
    DeliverCompletion,
    IsWanted,
    PollRequests,
    Request,
)
from ludus.policy.engine.scoped_settings import (
    SWITCH_INTERVAL_S,
    short_switch_interval,
    without_cudnn_sdpa,
)

COMPLETION = Completion((5,), (-0.5,), stopped=False)


class ContinuousEngine:
    """An engine with continuous batching that completes requests at once."""

    def __init__(self) -> None:
        self.stats = DecodeStats()
        self.keep_running = True
        self.interval = 0.0
        self.refreshed = 0
        self.fails = self.silent = False

    def run(
        self,
        requests: Sequence[Request],
        deliver: DeliverCompletion,
        is_wanted: IsWanted,
        poll_requests: PollRequests,
    ) -> None:
        self.interval, num_requests = sys.getswitchinterval(), 0
        if self.fails:
            raise torch.OutOfMemoryError("too much")
        if self.silent:
            while is_wanted(0):
                time.sleep(0.001)
            return
        while requests or self.keep_running:
            for at in range(num_requests, num_requests + len(requests)):
                deliver(at, COMPLETION)
            num_requests += len(requests)
            requests = poll_requests(100)
            time.sleep(0.0005)

    def refresh(self) -> None:
        self.refreshed += 1

    def free_cache(self, *, larger_than: int = 0) -> None: ...


@pytest.fixture
def engine() -> Iterator[ContinuousEngine]:
    engine = ContinuousEngine()
    yield engine
    engine.keep_running = False


@pytest.fixture
def default_interval() -> float:
    """The switch interval when nothing decodes: closed batchers of other tests may still end."""
    end = time.monotonic() + 20
    while (interval := sys.getswitchinterval()) <= SWITCH_INTERVAL_S:
        assert time.monotonic() < end, "a batcher of another test is still decoding"
        time.sleep(0.001)
    return interval


async def sample(batcher: RequestBatcher) -> Completion:
    return await batcher.sample(
        (1, 2), max_tokens=3, stop_token_ids=(), sampling=SamplingParams(), seed=0
    )


async def test_a_continuous_run_keeps_no_resolved_requests(
    engine: ContinuousEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, init = WeakSet[BatchedRequest](), BatchedRequest.__init__

    def record(self: BatchedRequest, *args: Any) -> None:
        init(self, *args)
        kept.add(self)

    monkeypatch.setattr(BatchedRequest, "__init__", record)
    async with RequestBatcher(engine, batch_wait_s=0.0, max_batch=4) as batcher:
        for _ in range(40):
            await sample(batcher)
        gc.collect()
        # All requests went into one run, which has not ended; it holds its first one.
        assert len(kept) <= 2


async def test_the_switch_interval_is_short_only_while_decoding(
    engine: ContinuousEngine, default_interval: float
) -> None:
    async with RequestBatcher(engine, batch_wait_s=0.0) as batcher:
        await sample(batcher)
        assert engine.interval == pytest.approx(SWITCH_INTERVAL_S) == sys.getswitchinterval()
        engine.keep_running = False
        await until(lambda: sys.getswitchinterval() == pytest.approx(default_interval))


def test_a_nested_setting_is_restored_by_the_outermost_exit(default_interval: float) -> None:
    with short_switch_interval():
        with short_switch_interval():
            pass
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() == pytest.approx(default_interval)


async def test_cudnn_attention_is_off_while_decoding(
    engine: ContinuousEngine, default_interval: float
) -> None:
    cudnn_enabled = torch.backends.cuda.cudnn_sdp_enabled
    assert cudnn_enabled()
    async with RequestBatcher(engine, batch_wait_s=0.0) as batcher:
        await sample(batcher)
        assert not cudnn_enabled()
        with without_cudnn_sdpa():
            engine.keep_running = False
            await until(lambda: sys.getswitchinterval() == pytest.approx(default_interval))
            assert not cudnn_enabled()
    assert cudnn_enabled()


async def test_an_engine_counts_as_working_until_the_stall_timeout(
    engine: ContinuousEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RequestBatcher(engine, batch_wait_s=0.0) as batcher:
        assert not batcher.is_working
        await sample(batcher)
        assert batcher.is_working
        monkeypatch.setattr(batcher_module, "STALL_TIMEOUT_S", 0.0)
        assert not batcher.is_working


async def test_refresh_restores_max_batch_after_out_of_memory(
    engine: ContinuousEngine,
) -> None:
    engine.fails, engine.keep_running = True, False
    async with RequestBatcher(engine, max_batch=8) as batcher:
        with pytest.raises(torch.OutOfMemoryError):
            await sample(batcher)
        assert batcher.max_batch == 1
        batcher.refresh()
        assert (batcher.max_batch, engine.refreshed) == (8, 1)


async def test_close_fails_requests_of_other_event_loops_too(engine: ContinuousEngine) -> None:
    engine.silent, engine.keep_running = True, False
    batcher, errors = RequestBatcher(engine), list[str]()

    def sample_in_other_loop() -> None:
        try:
            asyncio.run(sample(batcher))
        except AgentError as error:
            errors.append(str(error))

    other = threading.Thread(target=sample_in_other_loop)
    other.start()
    await until(lambda: batcher._unanswered)
    here = asyncio.ensure_future(sample(batcher))
    await asyncio.sleep(0)
    await batcher.close()
    with pytest.raises(AgentError, match="was closed"):
        await here
    await asyncio.to_thread(other.join, 10)
    assert len(errors) == 1 and "was closed" in errors[0]
    assert not batcher._unanswered
