"""The rows of a batch as the device sees them: fixed places that steps read and move on.

The host writes them when the batch changes, and looks at what has come of them every few steps.
What rows mean to those who asked is `ludus.policy.fast.session`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TOKEN, POSITION, SLOT, SEED, LEFT, ALIVE, COUNT, TOP_K = range(8)
"""Fields of `Rows.state`: the token to be read next and its place, where the row's keys are, what
its noise comes from, how many tokens it may still have, whether it goes on, how many it got."""
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
    def cut(self) -> bool:
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


@dataclass(frozen=True, slots=True)
class Look:
    """What rows have got since the host looked last: ids[step][row], and how many each."""

    counts: list[int]
    ids: Any
    logprobs: Any


class Rows:
    """Room for so many rows, each with so many stops."""

    def __init__(self, capacity: int, *, stops: int, device: Any) -> None:
        import torch

        self.capacity = capacity
        self._pinned = torch.device(device).type == "cuda"
        made = {
            "state": torch.zeros(8, capacity, dtype=torch.int64),
            "heat": torch.zeros(3, capacity),
            "stops": torch.zeros(capacity, stops, dtype=torch.int64),
            "ids": torch.zeros(STEPS, capacity, dtype=torch.int64),
            "logprobs": torch.zeros(STEPS, capacity),
        }
        self.state, self.heat, self.stops, self.ids, self.logprobs = (
            each.to(device, copy=True) for each in made.values()
        )
        self._here = {
            name: each.pin_memory() if self._pinned else each for name, each in made.items()
        }
        self._seen = self._here["state"].clone()
        if self._pinned:
            self._seen = self._seen.pin_memory()

    def load(self, lines: Sequence[Line], *, scratch: int) -> None:
        """Put these in place, and make the rest of the room point where nothing matters."""
        import torch

        state, heat, stops = (self._here[name] for name in ("state", "heat", "stops"))
        number = len(lines)
        state.zero_()
        state[SLOT].fill_(scratch)
        fields = [
            [each.token, each.position, each.slot, each.seed, each.left, 1, 0, each.top_k]
            for each in lines
        ]
        state[:, :number] = torch.tensor(fields).T
        heat[:, :number] = torch.tensor(
            [[each.temperature, each.top_p, float("-inf")] for each in lines]
        ).T
        width = stops.shape[1]
        stops[:number] = torch.tensor([_filled(each.stops, width) for each in lines])
        self.state.copy_(state, non_blocking=True)
        self.heat.copy_(heat, non_blocking=True)
        self.stops.copy_(stops, non_blocking=True)

    def again(self) -> None:
        """Go on with the same rows."""
        self.state[COUNT].zero_()

    def look(self, number: int, steps: int) -> Look:
        """Wait for what has been launched."""
        import torch

        self._seen[COUNT].copy_(self.state[COUNT], non_blocking=True)
        ids, logprobs = self._here["ids"], self._here["logprobs"]
        ids[:steps].copy_(self.ids[:steps], non_blocking=True)
        logprobs[:steps].copy_(self.logprobs[:steps], non_blocking=True)
        if self._pinned:
            done = torch.cuda.Event()
            done.record()
            done.synchronize()
        counts: list[int] = self._seen[COUNT, :number].tolist()
        return Look(counts, ids[:steps, :number].T.tolist(), logprobs[:steps, :number].T.tolist())


def _filled(stops: Sequence[int], width: int) -> list[int]:
    return [*stops, *[-1] * (width - len(stops))]
