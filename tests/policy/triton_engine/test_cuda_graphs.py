"""How steps are split into launches of graphs."""

from __future__ import annotations

import pytest

from ludus.policy.triton_engine.batch_state import MAX_STEPS_PER_FETCH
from ludus.policy.triton_engine.cuda_graphs import (
    LONG_LAUNCH_STEPS,
    SHORT_LAUNCH_STEPS,
    graph_launch_sizes,
)


@pytest.mark.parametrize("steps", range(1, MAX_STEPS_PER_FETCH + 1))
def test_steps_are_launched_in_few_graphs_of_two_sizes(steps: int) -> None:
    launches = list(graph_launch_sizes(steps))
    assert steps <= sum(launches) <= min(MAX_STEPS_PER_FETCH, steps + 1)
    assert {*launches} <= {SHORT_LAUNCH_STEPS, LONG_LAUNCH_STEPS} and len(launches) <= 3
