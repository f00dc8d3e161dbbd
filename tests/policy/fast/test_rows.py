"""What the host says of rows is what steps find, and what steps leave is what the host sees."""

from __future__ import annotations

import pytest
import torch

from ludus.policy.fast.rows import COUNT, SEED, SLOT, STEPS, TOP_K, Line, Rows

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("capacity", [1, 5, 64])
def test_rows_go_there_and_come_back_as_they_are(device: str, capacity: int) -> None:
    rows = Rows(capacity, stops=3, device=device)
    number = max(1, capacity - 2)
    lines = [Line(7, 4, at, -(2**63) + at, 9, 0.5, 0.9, 40, (at,)) for at in range(number)]
    rows.load(lines, scratch=99)
    assert rows.state[:, 0].tolist() == [7, 4, 0, -(2**63), 9, 1, 40, 0]
    assert rows.state[SLOT].tolist() == [*range(number), *[99] * (capacity - number)]
    assert rows.state[SEED, number - 1] == -(2**63) + number - 1 and rows.state[TOP_K, 0] == 40
    assert rows.heat[:, number - 1].tolist() == pytest.approx([0.5, 0.9, float("-inf")])
    assert rows.stops[:number].tolist() == [[at, -1, -1] for at in range(number)]

    rows.state[COUNT] = torch.arange(capacity)
    rows.ids.copy_(torch.arange(STEPS * capacity).view(STEPS, capacity))
    rows.logprobs.copy_(-rows.ids / 2)
    look = rows.look(number)
    assert look.counts == [*range(number)]
    assert look.ids == rows.ids[:, :number].T.tolist()
    assert look.logprobs == rows.logprobs[:, :number].T.tolist()
    rows.again()
    assert rows.look(number).counts == [0] * number
