"""The rows of a batch as the device sees them: fixed places that steps read and move on.

The host writes them when the batch changes, and looks at what has come of them every few steps.
What rows mean to those who asked is `ludus.policy.triton_engine.scheduler`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from ludus.policy.triton_engine.pinned_buffer import PinnedBuffer

TOKEN, POSITION, SLOT, SEED, TOKENS_LEFT, ACTIVE, TOP_K, NUM_NEW = range(8)
"""Fields of `Rows.state`: the token to be read next and its place, where the row's keys are, what
its noise comes from, how many tokens it may still have, whether it goes on, from how many it is
drawn; and last, beside the tokens themselves, how many it got."""
TEMPERATURE, TOP_P, MIN_LOGIT = range(3)
"""Fields of `Rows.heat`; the last is the smallest logit that may be drawn."""
MAX_STEPS_PER_FETCH = 8
"""The most steps between two looks."""


@dataclass(frozen=True, slots=True)
class RowState:
    """What the host says of one row."""

    token: int
    position: int
    slot: int
    seed: int
    tokens_left: int
    temperature: float
    top_p: float
    top_k: int
    stops: Sequence[int]

    @property
    def state_values(self) -> tuple[int, ...]:
        """As they stand in `Rows.state`."""
        return self.token, self.position, self.slot, self.seed, self.tokens_left, 1, self.top_k, 0

    @property
    def sampling_values(self) -> tuple[float, float, float]:
        return self.temperature, self.top_p, float("-inf")

    @property
    def needs_filter(self) -> bool:
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What rows have got since the host looked last: ids[step][row], and how many each."""

    counts: list[int]
    ids: Any
    logprobs: Any


class BatchState:
    """Room for so many rows, each with so many stops.

    All of it lies in one place, in the order: what the host alone writes, what both write, what the
    steps alone write. So each way is one copy.
    """

    def __init__(self, capacity: int, *, stops: int, device: Any) -> None:
        import torch

        self.capacity = capacity
        # Numbers of single precision lie in pairs where whole ones would.
        sizes = ((3 * capacity + 1) // 2, capacity * stops, 8 * capacity, MAX_STEPS_PER_FETCH * capacity,
                 MAX_STEPS_PER_FETCH * capacity // 2)  # fmt: skip
        ends = list(accumulate(sizes))
        self._buffer = PinnedBuffer(ends[-1], device)
        self._upload_range, self._download_range = (0, ends[2]), (ends[2] - capacity, ends[4])
        there = self._buffer.device_tensor.split(sizes)
        here = np.split(self._buffer.host_array, ends[:-1])
        shapes = (3, capacity), (capacity, stops), (8, capacity), (MAX_STEPS_PER_FETCH, capacity)
        self.sampling = there[0].view(torch.float32)[: 3 * capacity].view(shapes[0])
        self.stops, self.state, self.ids = (
            part.view(shape) for part, shape in zip(there[1:4], shapes[1:], strict=True)
        )
        self.logprobs = there[4].view(torch.float32).view(shapes[3])
        self._host_sampling = here[0].view(np.float32)[: 3 * capacity].reshape(shapes[0])
        self._host_stops, self._host_state, self._host_ids = (
            part.reshape(shape) for part, shape in zip(here[1:4], shapes[1:], strict=True)
        )
        self._host_logprobs = here[4].view(np.float32).reshape(shapes[3])

    def load(self, rows: Sequence[RowState], *, scratch_slot: int) -> None:
        """Put these in place, and make the rest of the room point where nothing matters."""
        number, width = len(rows), self._host_stops.shape[1]
        self._buffer.wait()
        self._host_state.fill(0)
        self._host_state[SLOT] = scratch_slot
        self._host_state[:, :number] = np.array(
            [each.state_values for each in rows], dtype=np.int64
        ).T
        self._host_sampling[:, :number] = np.array([each.sampling_values for each in rows]).T
        self._host_stops[:number] = [_pad_stops(each.stops, width) for each in rows]
        self._buffer.upload(*self._upload_range)

    def reset_counts(self) -> None:
        """Go on with the same rows."""
        self.state[NUM_NEW].zero_()

    def fetch(self, number: int) -> StepOutput:
        """Wait for what has been launched."""
        self._buffer.download(*self._download_range)
        counts: list[int] = self._host_state[NUM_NEW, :number].tolist()
        return StepOutput(
            counts,
            self._host_ids[:, :number].T.tolist(),
            self._host_logprobs[:, :number].T.tolist(),
        )


def _pad_stops(stops: Sequence[int], width: int) -> list[int]:
    return [*stops, *[-1] * (width - len(stops))]
