"""How steps are split into launches of graphs, and captures that run out of memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ludus.policy.triton_engine.batch_state import MAX_STEPS_PER_FETCH
from ludus.policy.triton_engine.cuda_graphs import (
    LONG_LAUNCH_STEPS,
    SHORT_LAUNCH_STEPS,
    CudaGraphRunner,
    graph_launch_sizes,
)

TOO_MANY_BYTES = 1 << 42
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("steps", range(1, MAX_STEPS_PER_FETCH + 1))
def test_steps_are_launched_in_few_graphs_of_two_sizes(steps: int) -> None:
    launches = list(graph_launch_sizes(steps))
    assert steps <= sum(launches) <= min(MAX_STEPS_PER_FETCH, steps + 1)
    assert {*launches} <= {SHORT_LAUNCH_STEPS, LONG_LAUNCH_STEPS} and len(launches) <= 3


@needs_gpu
def test_work_whose_capture_runs_out_of_memory_runs_without_a_graph() -> None:
    runner, counter = CudaGraphRunner(), torch.zeros(4, device="cuda")

    def count() -> Any:
        counter.add_(1)
        if torch.cuda.is_current_stream_capturing():
            torch.empty(TOO_MANY_BYTES, dtype=torch.uint8, device="cuda")
        return counter

    for _ in range(3):
        runner.run("too large", count)
    assert counter.tolist() == [3.0] * 4
    # The allocator works as before: it frees memory, and other graphs are captured in its pool.
    torch.cuda.empty_cache()
    for _ in range(3):
        runner.run("small", lambda: counter.mul_(2))
    assert counter.tolist() == [24.0] * 4
