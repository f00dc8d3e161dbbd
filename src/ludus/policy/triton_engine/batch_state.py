"""The state of a batch on the device: tensors at fixed addresses that decoding steps update.

The host writes them when the batch changes, and fetches new tokens every few steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TOKEN, POSITION, SLOT, SEED, TOKENS_LEFT, ACTIVE, TOP_K, NUM_NEW = range(8)
"""Rows of `BatchState.state`. TOKEN and POSITION: the next input token and its position. NUM_NEW:
tokens sampled since the last fetch; it is last, so that it lies next to the tokens themselves."""
TEMPERATURE, TOP_P, MIN_LOGIT = range(3)
"""Rows of `BatchState.sampling`. MIN_LOGIT: the smallest logit that may be sampled."""
MAX_STEPS_PER_FETCH = 8


@dataclass(frozen=True, slots=True)
class RowState:
    """The state of one sequence, as the host sets it."""

    token: int
    position: int
    slot: int
    seed: int
    tokens_left: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stops: Sequence[int] = ()

    @property
    def needs_filter(self) -> bool:
        """Whether top_k or top_p restricts the tokens."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Tokens sampled since the last fetch: row `r` has `ids[: counts[r], r]`."""

    counts: NDArray[np.int64]
    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    tokens_left: NDArray[np.int64]
    """Tokens that each row may still sample; 0 if it has finished."""


class PinnedBuffer:
    """An int64 array on the host, and its counterpart on the device.

    They are copied through pinned memory: copies from pageable memory would block until everything
    launched before them has finished. Several host arrays take turns, so that the next one can be
    written before the device has copied the last one.
    """

    def __init__(self, length: int, device: torch.device, *, host_arrays: int = 1) -> None:
        on_gpu = torch.device(device).type == "cuda"
        hosts = [torch.zeros(length, dtype=torch.int64) for _ in range(host_arrays)]
        self._host_tensors = [each.pin_memory() if on_gpu else each for each in hosts]
        self._copies_done = [torch.cuda.Event() if on_gpu else None for _ in hosts]
        self._current = 0
        self.device_tensor = hosts[0].to(device, copy=True)

    @property
    def host_array(self) -> NDArray[np.int64]:
        array: NDArray[np.int64] = self._host_tensors[self._current].numpy()
        return array

    def next(self) -> None:
        """Switch to the next host array, and wait until it may be written."""
        self._current = (self._current + 1) % len(self._host_tensors)
        self.wait()

    def wait(self) -> None:
        """Wait for the last copy of the host array, which an upload may still be reading."""
        if (event := self._copies_done[self._current]) is not None:
            event.synchronize()

    def upload(self, begin: int, end: int) -> None:
        """Copy this range to the device, asynchronously."""
        self._copy(self._host_tensors[self._current], self.device_tensor, begin, end)

    def download(self, begin: int, end: int) -> None:
        """Copy this range to the host after all earlier launches, and wait for the copy."""
        self._copy(self.device_tensor, self._host_tensors[self._current], begin, end)
        self.wait()

    def _copy(self, source: Tensor, target: Tensor, begin: int, end: int) -> None:
        target[begin:end].copy_(source[begin:end], non_blocking=True)
        if (event := self._copies_done[self._current]) is not None:
            event.record()


class BatchState:
    """Tensors for `capacity` rows, each with up to `stops` stop tokens.

    state [8, capacity], sampling [3, capacity], stops [capacity, stops], ids and logprobs
    [MAX_STEPS_PER_FETCH, capacity]. They are views of one buffer, in the order: written by the host
    only, by both, by the steps only. So an upload is one copy, and a download is one copy of the
    state of all rows.
    """

    def __init__(self, capacity: int, *, stops: int, device: torch.device) -> None:
        self.capacity, self._device = capacity, device
        outputs = MAX_STEPS_PER_FETCH * capacity
        # In units of int64, each of which holds two float32.
        sizes = ((3 * capacity + 1) // 2, capacity * stops, 8 * capacity, outputs, outputs // 2)
        ends = list(accumulate(sizes))
        self._buffer = PinnedBuffer(ends[-1], device)
        self._upload_range = 0, ends[2]
        self._download_range = ends[1], ends[4]
        shapes = (3, capacity), (capacity, stops), (8, capacity), (MAX_STEPS_PER_FETCH, capacity)

        device_parts = self._buffer.device_tensor.split(sizes)
        self.sampling = device_parts[0].view(torch.float32)[: 3 * capacity].view(shapes[0])
        self.stops = device_parts[1].view(shapes[1])
        self.state = device_parts[2].view(shapes[2])
        self.ids = device_parts[3].view(shapes[3])
        self.logprobs = device_parts[4].view(torch.float32).view(shapes[3])

        host_parts = np.split(self._buffer.host_array, ends[:-1])
        self._host_sampling = host_parts[0].view(np.float32)[: 3 * capacity].reshape(shapes[0])
        self._host_stops = host_parts[1].reshape(shapes[1])
        self._host_state = host_parts[2].reshape(shapes[2])
        self._host_ids = host_parts[3].reshape(shapes[3])
        self._host_logprobs = host_parts[4].view(np.float32).reshape(shapes[3])

    def load(
        self, added: Sequence[RowState], *, scratch_slot: int, kept: Sequence[int] = ()
    ) -> None:
        """Keep these rows, by their positions, and add others behind them.

        The rest become inactive rows of the scratch slot.
        """
        first, number, rows = len(kept), len(kept) + len(added), np.asarray(kept, dtype=np.intp)
        self._buffer.wait()
        state, sampling, stops = self._host_state, self._host_sampling, self._host_stops
        state[:, :first], sampling[:, :first] = state[:, rows], sampling[:, rows]
        stops[:first] = stops[rows]
        state[:, number:], state[SLOT, number:], state[NUM_NEW] = 0, scratch_slot, 0
        if added:
            values = [
                (r.token, r.position, r.slot, r.seed, r.tokens_left, 1, r.top_k, 0) for r in added
            ]
            state[:, first:number] = np.array(values, np.int64).T
            sampling[:, first:number] = np.array(
                [(row.temperature, row.top_p, float("-inf")) for row in added]
            ).T
            width = stops.shape[1]
            stops[first:number] = [[*row.stops, *[-1] * (width - len(row.stops))] for row in added]
        self._buffer.upload(*self._upload_range)

    def with_stops(self, stops: int) -> BatchState:
        """The same rows, with room for so many stop tokens each."""
        wider = BatchState(self.capacity, stops=stops, device=self._device)
        wider._host_state[:], wider._host_sampling[:] = self._host_state, self._host_sampling
        wider._host_stops.fill(-1)
        wider._host_stops[:, : self._host_stops.shape[1]] = self._host_stops
        return wider

    def reset_counts(self) -> None:
        """Start a new round of steps with the same rows."""
        self.state[NUM_NEW].zero_()

    def fetch(self, number: int) -> StepOutput:
        """Wait for the launched steps, and download the output of the first `number` rows."""
        self._buffer.download(*self._download_range)
        state = self._host_state[:, :number]
        return StepOutput(
            state[NUM_NEW].copy(),
            self._host_ids[:, :number].copy(),
            self._host_logprobs[:, :number].copy(),
            state[TOKENS_LEFT] * state[ACTIVE],
        )
