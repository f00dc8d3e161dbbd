"""Decoding while episodes are played: how long it takes, and how much of it the GPU works.

Episodes come in groups and play a few turns on one event loop. Each turn costs some Python there,
as a template, a tokenizer and an environment do, and the decoding thread competes for the GIL.
Used by `decode.py --live`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GROUP, TURNS = 8, 5
REPLY_TOKENS = (10, 42)
"""The fewest and the most tokens of a reply."""
OBSERVATION_TOKENS = 20
PYTHON_WORK_S = 0.001
"""Python time of a turn on the event loop."""


@dataclass(frozen=True, slots=True)
class Round:
    wall_s: float
    busy_s: float
    tokens: int


def measure_live(engine: Any, prompts: Sequence[tuple[int, ...]]) -> None:
    """Print the times of a round: weight refresh, all episodes, all turns."""
    _run_round(engine, prompts)
    best = min((_run_round(engine, prompts) for _ in range(3)), key=lambda each: each.busy_s)
    device_s = _device_seconds(engine, prompts)
    print(
        f"{len(prompts)} episodes of {TURNS} turns, {1000 * PYTHON_WORK_S:.0f} ms of Python each: "
        f"{best.tokens:,} tokens in {best.wall_s:.3f} s; busy {best.busy_s:.3f} s, "
        f"of which the GPU works {device_s:.3f} s",
        flush=True,
    )


def _run_round(engine: Any, prompts: Sequence[tuple[int, ...]]) -> Round:
    engine.refresh()
    stats = engine.stats
    start, busy_s, tokens = time.perf_counter(), stats.busy_s, stats.sampled_tokens
    asyncio.run(_play(engine, prompts))
    wall_s = time.perf_counter() - start
    return Round(wall_s, stats.busy_s - busy_s, stats.sampled_tokens - tokens)


async def _play(engine: Any, prompts: Sequence[tuple[int, ...]]) -> None:
    from ludus.policy.engine.batcher import RequestBatcher

    batcher = RequestBatcher(engine, max_batch=len(prompts), batch_wait_s=0.0)
    async with batcher, asyncio.TaskGroup() as group:
        for number, ids in enumerate(prompts):
            group.create_task(_play_episode(batcher, ids, number))


async def _play_episode(batcher: Any, ids: tuple[int, ...], number: int) -> None:
    from ludus.policy.engine.sampling import SamplingParams

    rng = random.Random(number)
    for turn in range(TURNS):
        _run_python()
        reply = await batcher.sample(
            ids,
            max_tokens=rng.randint(*REPLY_TOKENS),
            stop_token_ids=(),
            sampling=SamplingParams(),
            seed=number * TURNS + turn,
        )
        ids = (*ids, *reply.ids, *rng.choices(range(3, 1000), k=OBSERVATION_TOKENS))


def _run_python() -> None:
    """Use CPU time of this thread; waiting for the GIL does not count."""
    end = time.thread_time() + PYTHON_WORK_S
    while time.thread_time() < end:
        pass


def _device_seconds(engine: Any, prompts: Sequence[tuple[int, ...]]) -> float:
    """The total run time of kernels and copies."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        _run_round(engine, prompts)
    return float(sum(each.self_device_time_total for each in profiler.key_averages()) / 1e6)
