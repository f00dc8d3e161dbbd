"""Which slot of the cache holds the keys of which ids, and which of them a new prompt can use.

Plain numbers: nothing here is on a device. A prefix never changes, so it may be copied from a slot
that is in use. A free slot all of which is the beginning of a prompt is gone on with; that is how
an episode finds again what it had read in its turn before, and it is looked for first, because to
compare a prompt with all that is held takes longer than a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WORTH_WAITING = 2048
"""Tokens for which a prompt waits until another of the same round has been read."""
A_TURN = 256
"""Tokens that an episode may have gone on by; one that shares more than all but these is not
looked for."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot for a prompt."""

    slot: int
    source: int | None
    """The slot whose first `known` tokens are to be copied; None: they are in place."""
    known: int
    """Tokens that need not be read."""
    wave: int
    """How many others of the round have to be read before, one after the other."""


class Slots:
    """Bookkeeping for the slots of a cache."""

    def __init__(self) -> None:
        self._now = 0
        self._ids: list[tuple[int, ...]] = []
        self._held: Any = np.full((0, 0), -1, dtype=np.int32)
        self._filled: Any = np.zeros(0, dtype=np.int64)
        self._taken: Any = np.zeros(0, dtype=bool)
        self._since: Any = np.zeros(0, dtype=np.int64)
        self._wave: Any = np.zeros(0, dtype=np.int64)
        self._lent: Any = np.zeros(0, dtype=bool)

    @property
    def free(self) -> int:
        return int((~self._taken).sum())

    def resize(self, slots: int, length: int) -> None:
        """As the cache: what they hold stays, as far as there is still room for it."""
        old, kept = self._held, min(slots, len(self._held))
        long = min(length, old.shape[1])
        self._ids = [ids[:long] for ids in self._ids[:kept]] + [()] * (slots - kept)
        self._held = np.full((slots, length), -1, dtype=np.int32)
        self._held[:kept, :long] = old[:kept, :long]
        self._filled = np.minimum(_as_long(self._filled, slots), long)
        self._taken = _as_long(self._taken, slots)
        self._since = _as_long(self._since, slots)
        self._wave = np.full(slots, -1)
        self._lent = np.zeros(slots, dtype=bool)

    def forget(self) -> None:
        """Nothing that is held is true any more."""
        self._ids = [()] * len(self._ids)
        self._held.fill(-1)
        self._filled.fill(0)
        self._taken.fill(False)

    def begin_round(self) -> None:
        self._wave.fill(-1)
        self._lent.fill(False)

    def lease(self, ids: Sequence[int]) -> Lease | None:
        """A slot for these ids, of which the last is always read anew; None: there is no room."""
        if self._taken.all():
            return None
        self._now += 1
        best, known = self._found(tuple(ids[:-1]))
        wave = int(self._wave[best]) + 1 if known else 0
        if not self._taken[best] and known and known == self._filled[best]:
            return self._given(best, None, ids, known, wave)
        slot = self._oldest(best if known else None)
        if slot is None:
            return None
        source = None if slot == best or not known else best
        if source is not None:
            self._lent[source] = True
            self._since[source] = self._now
        return self._given(slot, source, ids, known, wave)

    def release(self, slot: int, ids: Sequence[int]) -> None:
        """Nobody uses it now; these are the ids that it holds the keys of."""
        self._taken[slot] = False
        self._hold(slot, ids)

    def _given(
        self, slot: int, source: int | None, ids: Sequence[int], known: int, wave: int
    ) -> Lease:
        self._hold(slot, ids[:-1])
        self._taken[slot] = True
        self._wave[slot] = wave
        return Lease(slot, source, known, wave)

    def _hold(self, slot: int, ids: Sequence[int]) -> None:
        self._ids[slot] = tuple(ids)
        self._held[slot] = -1
        self._held[slot, : len(ids)] = ids
        self._filled[slot] = len(ids)
        self._since[slot] = self._now

    def _found(self, wanted: tuple[int, ...]) -> tuple[int, int]:
        """The slot that knows most of what is wanted, and how much that is."""
        slot = self._continued(wanted)
        if slot is not None:
            return slot, len(self._ids[slot])
        shared = self._shared(wanted)
        slot = self._best(shared)
        return slot, int(shared[slot])

    def _continued(self, wanted: tuple[int, ...]) -> int | None:
        """A free slot that wanted goes on from, or one that holds just this, and is soon read."""
        least, most = max(1, len(wanted) - A_TURN), len(wanted)
        fitting = [
            slot
            for slot, ids in enumerate(self._ids)
            if least <= len(ids) <= most
            and ids[-1] == wanted[len(ids) - 1]
            and (len(ids) == most or not self._taken[slot])
            and ids == wanted[: len(ids)]
        ]
        return max(fitting, key=self._use) if fitting else None

    def _use(self, slot: int) -> tuple[int, bool, int]:
        return len(self._ids[slot]), not self._taken[slot], -int(self._wave[slot])

    def _shared(self, wanted: tuple[int, ...]) -> Any:
        """With how much of it each slot begins, as far as it pays to use that."""
        if not wanted:
            return np.zeros(len(self._held), dtype=np.int64)
        differs = self._held[:, : len(wanted)] != np.asarray(wanted, dtype=np.int32)
        shared = np.where(differs.any(1), differs.argmax(1), len(wanted))
        # To wait for another of this round costs a pass of its own through the model.
        soon = (self._wave >= 0) & (shared < len(wanted)) & (shared < WORTH_WAITING)
        return np.where(soon, 0, shared)

    def _best(self, shared: Any) -> int:
        """The longest prefix; of equals one that can be gone on with, or else is read soonest."""
        whole = ~self._taken & (shared == self._filled)
        return int(np.lexsort((-self._wave, whole, shared))[-1])

    def _oldest(self, best: int | None) -> int | None:
        """The free slot that has not been used for longest, and from which nobody copies."""
        free = ~self._taken & ~self._lent
        if best is not None and free.sum() > 1:
            free[best] = False
        if not free.any():
            return None
        # An empty one before any that may still be of use.
        age = np.where(self._filled == 0, -1, self._since)
        return int(np.argmin(np.where(free, age, np.iinfo(np.int64).max)))


def _as_long(old: Any, length: int) -> Any:
    new = np.zeros(length, dtype=old.dtype)
    kept = min(length, len(old))
    new[:kept] = old[:kept]
    return new
