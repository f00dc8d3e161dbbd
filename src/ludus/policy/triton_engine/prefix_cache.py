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

MIN_SHARED_TOKENS_TO_WAIT = 2048
"""Tokens for which a prompt waits until another of the same round has been read."""
MAX_TURN_TOKENS = 256
"""Tokens that an episode may have gone on by; one that shares more than all but these is not
looked for."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot for a prompt."""

    slot: int
    copy_from: int | None
    """The slot whose first `known` tokens are to be copied; None: they are in place."""
    num_cached: int
    """Tokens that need not be read."""
    wave: int
    """How many others of the round have to be read before, one after the other."""


class PrefixCache:
    """Bookkeeping for the slots of a cache."""

    def __init__(self) -> None:
        self._clock = 0
        self._ids: list[tuple[int, ...]] = []
        self._token_table: Any = np.full((0, 0), -1, dtype=np.int32)
        self._lengths: Any = np.zeros(0, dtype=np.int64)
        self._in_use: Any = np.zeros(0, dtype=bool)
        self._last_used: Any = np.zeros(0, dtype=np.int64)
        self._wave: Any = np.zeros(0, dtype=np.int64)
        self._is_copy_source: Any = np.zeros(0, dtype=bool)

    @property
    def num_free(self) -> int:
        return int((~self._in_use).sum())

    def resize(self, slots: int, length: int) -> None:
        """As the cache: what they hold stays, as far as there is still room for it."""
        old, kept = self._token_table, min(slots, len(self._token_table))
        long = min(length, old.shape[1])
        self._ids = [ids[:long] for ids in self._ids[:kept]] + [()] * (slots - kept)
        self._token_table = np.full((slots, length), -1, dtype=np.int32)
        self._token_table[:kept, :long] = old[:kept, :long]
        self._lengths = np.minimum(_resize_array(self._lengths, slots), long)
        self._in_use = _resize_array(self._in_use, slots)
        self._last_used = _resize_array(self._last_used, slots)
        self._wave = np.full(slots, -1)
        self._is_copy_source = np.zeros(slots, dtype=bool)

    def clear(self) -> None:
        """Nothing that is held is true any more."""
        self._ids = [()] * len(self._ids)
        self._token_table.fill(-1)
        self._lengths.fill(0)
        self._in_use.fill(False)

    def begin_round(self) -> None:
        self._wave.fill(-1)
        self._is_copy_source.fill(False)

    def lease(self, ids: Sequence[int]) -> Lease | None:
        """A slot for these ids, of which the last is always read anew; None: there is no room."""
        if self._in_use.all():
            return None
        self._clock += 1
        best, known = self._find_prefix(tuple(ids[:-1]))
        wave = int(self._wave[best]) + 1 if known else 0
        if not self._in_use[best] and known and known == self._lengths[best]:
            return self._grant(best, None, ids, known, wave)
        slot = self._least_recently_used(best if known else None)
        if slot is None:
            return None
        source = None if slot == best or not known else best
        if source is not None:
            self._is_copy_source[source] = True
            self._last_used[source] = self._clock
        return self._grant(slot, source, ids, known, wave)

    def release(self, slot: int, ids: Sequence[int]) -> None:
        """Nobody uses it now; these are the ids that it holds the keys of."""
        self._in_use[slot] = False
        self._record(slot, ids)

    def _grant(
        self, slot: int, source: int | None, ids: Sequence[int], known: int, wave: int
    ) -> Lease:
        self._record(slot, ids[:-1])
        self._in_use[slot] = True
        self._wave[slot] = wave
        return Lease(slot, source, known, wave)

    def _record(self, slot: int, ids: Sequence[int]) -> None:
        self._ids[slot] = tuple(ids)
        self._token_table[slot] = -1
        self._token_table[slot, : len(ids)] = ids
        self._lengths[slot] = len(ids)
        self._last_used[slot] = self._clock

    def _find_prefix(self, wanted: tuple[int, ...]) -> tuple[int, int]:
        """The slot that knows most of what is wanted, and how much that is."""
        slot = self._find_continuation(wanted)
        if slot is not None:
            return slot, len(self._ids[slot])
        shared = self._shared_lengths(wanted)
        slot = self._longest_match(shared)
        return slot, int(shared[slot])

    def _find_continuation(self, wanted: tuple[int, ...]) -> int | None:
        """A free slot that wanted goes on from, or one that holds just this, and is soon read."""
        least, most = max(1, len(wanted) - MAX_TURN_TOKENS), len(wanted)
        fitting = [
            slot
            for slot, ids in enumerate(self._ids)
            if least <= len(ids) <= most
            and ids[-1] == wanted[len(ids) - 1]
            and (len(ids) == most or not self._in_use[slot])
            and ids == wanted[: len(ids)]
        ]
        return max(fitting, key=self._continuation_rank) if fitting else None

    def _continuation_rank(self, slot: int) -> tuple[int, bool, int]:
        return len(self._ids[slot]), not self._in_use[slot], -int(self._wave[slot])

    def _shared_lengths(self, wanted: tuple[int, ...]) -> Any:
        """With how much of it each slot begins, as far as it pays to use that."""
        if not wanted:
            return np.zeros(len(self._token_table), dtype=np.int64)
        differs = self._token_table[:, : len(wanted)] != np.asarray(wanted, dtype=np.int32)
        shared = np.where(differs.any(1), differs.argmax(1), len(wanted))
        # To wait for another of this round costs a pass of its own through the model.
        soon = (self._wave >= 0) & (shared < len(wanted)) & (shared < MIN_SHARED_TOKENS_TO_WAIT)
        return np.where(soon, 0, shared)

    def _longest_match(self, shared: Any) -> int:
        """The longest prefix; of equals one that can be gone on with, or else is read soonest."""
        whole = ~self._in_use & (shared == self._lengths)
        return int(np.lexsort((-self._wave, whole, shared))[-1])

    def _least_recently_used(self, best: int | None) -> int | None:
        """The free slot that has not been used for longest, and from which nobody copies."""
        free = ~self._in_use & ~self._is_copy_source
        if best is not None and free.sum() > 1:
            free[best] = False
        if not free.any():
            return None
        # An empty one before any that may still be of use.
        age = np.where(self._lengths == 0, -1, self._last_used)
        return int(np.argmin(np.where(free, age, np.iinfo(np.int64).max)))


def _resize_array(old: Any, length: int) -> Any:
    new = np.zeros(length, dtype=old.dtype)
    kept = min(length, len(old))
    new[:kept] = old[:kept]
    return new
