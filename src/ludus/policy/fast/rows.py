"""The rows of a batch as the device sees them: fixed places that steps read and move on.

The host writes them when the batch changes, and looks at what has come of them every few steps.
What rows mean to those who asked is `ludus.policy.fast.session`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from ludus.policy.fast.passage import Passage

TOKEN, POSITION, SLOT, SEED, LEFT, ALIVE, TOP_K, COUNT = range(8)
"""Fields of `Rows.state`: the token to be read next and its place, where the row's keys are, what
its noise comes from, how many tokens it may still have, whether it goes on, from how many it is
drawn; and last, beside the tokens themselves, how many it got."""
TEMPERATURE, TOP_P, LEAST = range(3)
"""Fields of `Rows.heat`; the last is the smallest logit that may be drawn."""
STEPS = 8
"""The most steps between two looks."""


@dataclass(frozen=True, slots=True)
class Line:
    """What the host says of one row."""

    token: int
    position: int
    slot: int
    seed: int
    left: int
    temperature: float
    top_p: float
    top_k: int
    stops: Sequence[int]

    @property
    def fields(self) -> tuple[int, ...]:
        """As they stand in `Rows.state`."""
        return self.token, self.position, self.slot, self.seed, self.left, 1, self.top_k, 0

    @property
    def heat(self) -> tuple[float, float, float]:
        return self.temperature, self.top_p, float("-inf")

    @property
    def cut(self) -> bool:
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


@dataclass(frozen=True, slots=True)
class Look:
    """What rows have got since the host looked last: ids[step][row], and how many each."""

    counts: list[int]
    ids: Any
    logprobs: Any


class Rows:
    """Room for so many rows, each with so many stops.

    All of it lies in one place, in the order: what the host alone writes, what both write, what the
    steps alone write. So each way is one copy.
    """

    def __init__(self, capacity: int, *, stops: int, device: Any) -> None:
        import torch

        self.capacity = capacity
        # Numbers of single precision lie in pairs where whole ones would.
        sizes = ((3 * capacity + 1) // 2, capacity * stops, 8 * capacity, STEPS * capacity,
                 STEPS * capacity // 2)  # fmt: skip
        ends = list(accumulate(sizes))
        self._passage = Passage(ends[-1], device)
        self._sent, self._seen = (0, ends[2]), (ends[2] - capacity, ends[4])
        there = self._passage.there.split(sizes)
        here = np.split(self._passage.array, ends[:-1])
        shapes = (3, capacity), (capacity, stops), (8, capacity), (STEPS, capacity)
        self.heat = there[0].view(torch.float32)[: 3 * capacity].view(shapes[0])
        self.stops, self.state, self.ids = (
            part.view(shape) for part, shape in zip(there[1:4], shapes[1:], strict=True)
        )
        self.logprobs = there[4].view(torch.float32).view(shapes[3])
        self._heat = here[0].view(np.float32)[: 3 * capacity].reshape(shapes[0])
        self._stops, self._state, self._ids = (
            part.reshape(shape) for part, shape in zip(here[1:4], shapes[1:], strict=True)
        )
        self._logprobs = here[4].view(np.float32).reshape(shapes[3])

    def load(self, lines: Sequence[Line], *, scratch: int) -> None:
        """Put these in place, and make the rest of the room point where nothing matters."""
        number, width = len(lines), self._stops.shape[1]
        self._passage.wait()
        self._state.fill(0)
        self._state[SLOT] = scratch
        self._state[:, :number] = np.array([each.fields for each in lines], dtype=np.int64).T
        self._heat[:, :number] = np.array([each.heat for each in lines]).T
        self._stops[:number] = [_filled(each.stops, width) for each in lines]
        self._passage.send(*self._sent)

    def again(self) -> None:
        """Go on with the same rows."""
        self.state[COUNT].zero_()

    def look(self, number: int) -> Look:
        """Wait for what has been launched."""
        self._passage.fetch(*self._seen)
        counts: list[int] = self._state[COUNT, :number].tolist()
        return Look(counts, self._ids[:, :number].T.tolist(), self._logprobs[:, :number].T.tolist())


def _filled(stops: Sequence[int], width: int) -> list[int]:
    return [*stops, *[-1] * (width - len(stops))]
