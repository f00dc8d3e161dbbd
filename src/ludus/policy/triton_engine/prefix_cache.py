"""Prefix caching: the token ids in each cache slot, and the slots that a new prompt can reuse.

Pure bookkeeping on the host. A prefix in a slot never changes, so it may be copied even from a
slot that is in use. A free slot whose whole content is a prefix of the prompt is continued in
place; that is how an episode reuses its earlier turns. This case is looked for first, because
comparing a prompt with the content of all slots takes longer than a decoding step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value", bound=np.generic)

MIN_SHARED_TOKENS_TO_WAIT = 2048
"""A prompt waits for another of the same round only if they share this much: waiting costs a
separate prefill pass."""
KEY_BITS = 32  # Wider than any token id.
MAX_TURN_TOKENS = 256
"""A continuation is looked for only among slots that lack at most this many tokens."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot for a prompt, and what of the prompt is cached."""

    slot: int
    copy_from: int | None
    """The slot from which to copy the first `num_cached` tokens; None: they are in place."""
    num_cached: int
    wave: int
    """Prefill passes of this round that must come before, because prefixes are copied from them."""


class PrefixCache:
    """Content and use of the slots of a KV cache."""

    def __init__(self) -> None:
        self._clock = 0
        self._ids: list[tuple[int, ...]] = []
        self._slots_by_end: defaultdict[int, set[int]] = defaultdict(set)
        """Slots by the length and the last token of their content."""
        self._outdated_rows: set[int] = set()
        """Slots whose row of the table differs from `_ids`."""
        self._token_table: NDArray[np.int32] = np.full((0, 0), -1, dtype=np.int32)
        self._lengths: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._in_use: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self._last_used: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._wave: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._is_copy_source: NDArray[np.bool_] = np.zeros(0, dtype=bool)

    @property
    def num_free(self) -> int:
        return int((~self._in_use).sum())

    def resize(self, num_slots: int, slot_length: int) -> None:
        """Follow a resize of the cache; the content of slots is kept, as far as it fits."""
        self._update_table()
        old = self._token_table
        common, length = min(num_slots, len(old)), min(slot_length, old.shape[1])
        self._ids = [ids[:length] for ids in self._ids[:common]] + [()] * (num_slots - common)
        self._token_table = np.full((num_slots, slot_length), -1, dtype=np.int32)
        self._token_table[:common, :length] = old[:common, :length]
        self._slots_by_end.clear()
        for slot, ids in enumerate(self._ids):
            self._slots_by_end[_end_key(ids, len(ids))].add(slot)
        self._lengths = np.minimum(_resize_slot_values(self._lengths, num_slots), length)
        self._in_use = _resize_slot_values(self._in_use, num_slots)
        self._last_used = _resize_slot_values(self._last_used, num_slots)
        self._wave = np.full(num_slots, -1)
        self._is_copy_source = np.zeros(num_slots, dtype=bool)

    def clear(self) -> None:
        """Forget all content and free all slots, because the model's weights have changed."""
        self._ids = [()] * len(self._ids)
        self._slots_by_end.clear()
        self._token_table.fill(-1)
        self._outdated_rows.clear()
        self._lengths.fill(0)
        self._in_use.fill(False)

    def begin_round(self) -> None:
        """Start a round of leases that are prefilled together."""
        self._wave.fill(-1)
        self._is_copy_source.fill(False)

    def lease(self, ids: Sequence[int]) -> Lease | None:
        """Take a slot for a prompt; None if none is free.

        The last id is always computed anew: the first decoding step feeds it.
        """
        if all(self._in_use.tolist()):
            return None
        self._clock += 1
        prefix = tuple(ids[:-1])
        source = self._find_continuation(prefix)
        if source is not None:
            num_cached = len(self._ids[source])
        else:
            shared = self._shared_lengths(prefix)
            # The longest prefix; then one that can be continued in place; then the earliest wave.
            continuable = ~self._in_use & (shared == self._lengths)
            source = int(np.lexsort((-self._wave, continuable, shared))[-1])
            num_cached = int(shared[source])
        wave = int(self._wave[source]) + 1 if num_cached else 0
        if num_cached and not self._in_use[source] and num_cached == self._lengths[source]:
            return self._grant(source, None, ids, num_cached, wave)
        slot = self._least_recently_used(avoid=source if num_cached else None)
        if slot is None:
            return None
        copy_from = None if slot == source or not num_cached else source
        if copy_from is not None:
            self._is_copy_source[copy_from] = True
            self._last_used[copy_from] = self._clock
        return self._grant(slot, copy_from, ids, num_cached, wave)

    def release(self, slot: int, ids: Sequence[int]) -> None:
        """Free a slot, which holds the keys of these ids."""
        self._in_use[slot] = False
        self._record(slot, ids)

    def _grant(
        self, slot: int, copy_from: int | None, ids: Sequence[int], num_cached: int, wave: int
    ) -> Lease:
        self._record(slot, ids[:-1])
        self._in_use[slot] = True
        self._wave[slot] = wave
        return Lease(slot, copy_from, num_cached, wave)

    def _record(self, slot: int, ids: Sequence[int]) -> None:
        key = _end_key(self._ids[slot], int(self._lengths[slot]))
        if (before := self._slots_by_end[key]) <= {slot}:
            del self._slots_by_end[key]
        before.discard(slot)
        self._slots_by_end[_end_key(ids, len(ids))].add(slot)
        self._ids[slot] = tuple(ids)
        self._outdated_rows.add(slot)
        self._lengths[slot] = len(ids)
        self._last_used[slot] = self._clock

    def _find_continuation(self, ids: tuple[int, ...]) -> int | None:
        """A free slot that holds a prefix of these ids, or any slot that holds exactly these."""
        longest, get = len(ids), self._slots_by_end.get
        for length in range(longest, max(0, longest - MAX_TURN_TOKENS - 1), -1):
            if not (slots := get(length << KEY_BITS | ids[length - 1])):
                continue
            matches = [
                slot
                for slot in slots
                if (length == longest or not self._in_use[slot]) and self._ids[slot] == ids[:length]
            ]
            if matches:  # Among equals a free one, then the earliest wave.
                return max(matches, key=lambda slot: (not self._in_use[slot], -self._wave[slot]))
        return None

    def _shared_lengths(self, ids: tuple[int, ...]) -> NDArray[np.int64]:
        """Length of the prefix that each slot shares with these ids; 0 if it is not worth using."""
        if not ids:
            return np.zeros(len(self._token_table), dtype=np.int64)
        self._update_table()
        differs = self._token_table[:, : len(ids)] != np.asarray(ids, dtype=np.int32)
        shared = np.where(differs.any(1), differs.argmax(1), len(ids))
        this_round = self._wave >= 0
        too_short = (shared < len(ids)) & (shared < MIN_SHARED_TOKENS_TO_WAIT)
        return np.where(this_round & too_short, 0, shared)

    def _update_table(self) -> None:
        for slot in self._outdated_rows:
            ids = self._ids[slot]
            self._token_table[slot] = -1
            self._token_table[slot, : len(ids)] = ids
        self._outdated_rows.clear()

    def _least_recently_used(self, avoid: int | None) -> int | None:
        """The least recently used free slot that is no copy source; `avoid` as a last resort."""
        free = ~self._in_use & ~self._is_copy_source
        if avoid is not None and free.sum() > 1:
            free[avoid] = False
        if not free.any():
            return None
        # Empty slots come before any whose content may still be reused.
        age = np.where(self._lengths == 0, -1, self._last_used)
        return int(np.argmin(np.where(free, age, np.iinfo(np.int64).max)))


def _end_key(ids: Sequence[int], length: int) -> int:
    """The key of the first `length` ids in `_slots_by_end`."""
    return length << KEY_BITS | ids[length - 1] if length else 0


def _resize_slot_values(old: NDArray[Value], num_slots: int) -> NDArray[Value]:
    """Copy an array of one value per slot of the prefix cache to another number of slots."""
    new = np.zeros(num_slots, dtype=old.dtype)
    common = min(num_slots, len(old))
    new[:common] = old[:common]
    return new
