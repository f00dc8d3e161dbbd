"""Decoding while episodes are played: what the device does, and how long it takes all the same.

Episodes come in groups and play a few turns on one event loop. Each turn costs that loop some
Python, as a template, a tokenizer and an environment do, and the decoder shares Python's lock with
it. Used by `decode.py --live`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GROUP, TURNS = 8, 5
TOKENS = (10, 42)
"""Of a reply: the least and the most."""
ANSWER = 20
"""Tokens with which an environment answers."""
WORK = 0.001
"""Seconds of Python that a turn takes on the event loop."""


@dataclass(frozen=True, slots=True)
class Played:
    wall: float
    busy: float
    tokens: int


def live(engine: Any, prompts: Sequence[tuple[int, ...]]) -> None:
    """Print what a round of play takes: new weights, all episodes, all turns."""
    _round(engine, prompts)
    played = min((_round(engine, prompts) for _ in range(3)), key=lambda each: each.busy)
    device = _on_the_device(engine, prompts)
    print(
        f"{len(prompts)} episodes of {TURNS} turns, {1000 * WORK:.0f} ms of Python each: "
        f"{played.tokens:,} tokens in {played.wall:.3f} s; busy {played.busy:.3f} s, "
        f"of which the device works {device:.3f} s",
        flush=True,
    )


def _round(engine: Any, prompts: Sequence[tuple[int, ...]]) -> Played:
    engine.refresh()
    tally = engine.tally
    began, busy, sampled = time.perf_counter(), tally.busy, tally.sampled
    asyncio.run(_played(engine, prompts))
    return Played(time.perf_counter() - began, tally.busy - busy, tally.sampled - sampled)


async def _played(engine: Any, prompts: Sequence[tuple[int, ...]]) -> None:
    from ludus.policy.engine.batcher import RequestBatcher

    generator = RequestBatcher(None, engine=engine, max_batch=len(prompts), batch_wait_s=0.0)
    async with generator as model, asyncio.TaskGroup() as group:
        for number, ids in enumerate(prompts):
            group.create_task(_episode(model, ids, number))


async def _episode(model: Any, ids: tuple[int, ...], number: int) -> None:
    from ludus.policy.engine.sampling import SamplingParams

    made = random.Random(number)
    for turn in range(TURNS):
        _work()
        reply = await model.sample(
            ids,
            max_tokens=made.randint(*TOKENS),
            stop_token_ids=(),
            sampling=SamplingParams(),
            seed=number * TURNS + turn,
        )
        ids = (*ids, *reply.ids, *made.choices(range(3, 1000), k=ANSWER))


def _work() -> None:
    """By the clock of this thread: it is work, however often it has to wait for the lock."""
    end = time.thread_time() + WORK
    while time.thread_time() < end:
        pass


def _on_the_device(engine: Any, prompts: Sequence[tuple[int, ...]]) -> float:
    """Seconds that its kernels and copies run, one after the other."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        _round(engine, prompts)
    return float(sum(each.self_device_time_total for each in seen.key_averages()) / 1e6)
