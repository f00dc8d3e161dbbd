"""Batch state: uploads and downloads keep every value."""

from __future__ import annotations

import pytest
import torch

from ludus.policy.triton_engine.batch_state import (
    ACTIVE,
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
def test_rows_are_uploaded_and_downloaded_unchanged(device: str, capacity: int) -> None:
    batch = BatchState(capacity, stops=3, device=device)
    number = max(1, capacity - 2)
    rows = [
        RowState(7, 4, slot, -(2**63) + slot, 9, 0.5, 0.9, 40, (slot,)) for slot in range(number)
    ]
    batch.load(rows, scratch_slot=99)
    assert batch.state[:, 0].tolist() == [7, 4, 0, -(2**63), 9, 1, 40, 0]
    assert batch.state[SLOT].tolist() == [*range(number), *[99] * (capacity - number)]
    assert batch.state[SEED, number - 1] == -(2**63) + number - 1 and batch.state[TOP_K, 0] == 40
    assert batch.sampling[:, number - 1].tolist() == pytest.approx([0.5, 0.9, float("-inf")])
    assert batch.stops[:number].tolist() == [[slot, -1, -1] for slot in range(number)]

    batch.state[NUM_NEW] = torch.arange(capacity)
    steps = MAX_STEPS_PER_FETCH
    batch.ids.copy_(torch.arange(steps * capacity).view(steps, capacity))
    batch.logprobs.copy_(-batch.ids / 2)
    output = batch.fetch(number)
    assert output.counts.tolist() == [*range(number)]
    assert output.ids.tolist() == batch.ids[:, :number].tolist()
    assert output.logprobs.tolist() == batch.logprobs[:, :number].tolist()
    assert output.tokens_left.tolist() == [9] * number
    batch.reset_counts()
    batch.state[ACTIVE, 0] = 0
    output = batch.fetch(number)
    assert output.counts.tolist() == [0] * number
    assert output.tokens_left.tolist() == [0, *[9] * (number - 1)]
