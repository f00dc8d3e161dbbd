"""What the host says of rows is what steps find, and what steps leave is what the host sees."""

from __future__ import annotations

import pytest
import torch

from ludus.policy.triton_engine.batch_state import (
    MAX_STEPS_PER_FETCH,
    NUM_NEW,
    SEED,
    SLOT,
    TOP_K,
    BatchState,
    RowState,
)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("capacity", [1, 5, 64])
def test_rows_go_there_and_come_back_as_they_are(device: str, capacity: int) -> None:
    rows = BatchState(capacity, stops=3, device=device)
    number = max(1, capacity - 2)
    lines = [RowState(7, 4, at, -(2**63) + at, 9, 0.5, 0.9, 40, (at,)) for at in range(number)]
    rows.load(lines, scratch_slot=99)
    assert rows.state[:, 0].tolist() == [7, 4, 0, -(2**63), 9, 1, 40, 0]
    assert rows.state[SLOT].tolist() == [*range(number), *[99] * (capacity - number)]
    assert rows.state[SEED, number - 1] == -(2**63) + number - 1 and rows.state[TOP_K, 0] == 40
    assert rows.sampling[:, number - 1].tolist() == pytest.approx([0.5, 0.9, float("-inf")])
    assert rows.stops[:number].tolist() == [[at, -1, -1] for at in range(number)]

    rows.state[NUM_NEW] = torch.arange(capacity)
    rows.ids.copy_(torch.arange(MAX_STEPS_PER_FETCH * capacity).view(MAX_STEPS_PER_FETCH, capacity))
    rows.logprobs.copy_(-rows.ids / 2)
    look = rows.fetch(number)
    assert look.counts == [*range(number)]
    assert look.ids == rows.ids[:, :number].T.tolist()
    assert look.logprobs == rows.logprobs[:, :number].T.tolist()
    rows.reset_counts()
    assert rows.fetch(number).counts == [0] * number
