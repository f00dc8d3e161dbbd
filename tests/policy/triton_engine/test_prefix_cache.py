"""Which slot a prompt gets, and how much of its prefix is reused."""

from __future__ import annotations

import pytest

from ludus.policy.triton_engine.prefix_cache import (
    MAX_TURN_TOKENS,
    MIN_SHARED_TOKENS_TO_WAIT,
    Lease,
    PrefixCache,
)


def build_cache(num_slots: int, slot_length: int = 64) -> PrefixCache:
    cache = PrefixCache()
    cache.resize(num_slots, slot_length)
    return cache


def lease(cache: PrefixCache, ids: list[int]) -> Lease:
    """Lease a slot in a round of its own."""
    cache.begin_round()
    result = cache.lease(ids)
    assert result is not None
    return result


def test_a_released_slot_is_continued_in_place() -> None:
    cache = build_cache(4)
    first = lease(cache, [1, 2, 3])
    cache.release(first.slot, [1, 2, 3, 4])
    assert lease(cache, [1, 2, 3, 4, 5, 6]) == Lease(first.slot, None, 4, 0)


def test_a_shared_prefix_is_copied_and_its_source_kept() -> None:
    cache = build_cache(4)
    first = lease(cache, [1, 2, 3])
    cache.release(first.slot, [1, 2, 3, 4])
    other = lease(cache, [1, 2, 9, 9])
    assert (other.copy_from, other.num_cached) == (first.slot, 2) and other.slot != first.slot
    assert lease(cache, [1, 2, 3, 4, 5]).num_cached == 4


def test_members_of_a_group_wait_for_the_first_only() -> None:
    cache = build_cache(6)
    cache.begin_round()
    ids = [7] * 10
    leases = [cache.lease(ids) for _ in range(5)]
    assert [each and each.wave for each in leases] == [0, 1, 1, 1, 1]
    assert {each and each.copy_from for each in leases[1:]} == {leases[0] and leases[0].slot}


def test_only_a_long_shared_prefix_is_worth_waiting_for() -> None:
    cache = build_cache(4, MIN_SHARED_TOKENS_TO_WAIT + 50)
    cache.begin_round()
    short = [cache.lease([*range(30), last, 0]) for last in (40, 41)]
    assert [each and (each.wave, each.num_cached) for each in short] == [(0, 0), (0, 0)]
    long = [*range(100, 100 + MIN_SHARED_TOKENS_TO_WAIT)]
    far = [cache.lease([*long, last, 0]) for last in (1, 2)]
    assert [each and (each.wave, each.num_cached) for each in far] == [
        (0, 0),
        (1, MIN_SHARED_TOKENS_TO_WAIT),
    ]


def test_the_least_recently_used_slot_is_evicted() -> None:
    cache = build_cache(3)
    for ids in ([1, 1, 1], [2, 2, 2], [3, 3, 3]):
        cache.release(lease(cache, ids).slot, ids)
    cache.release(lease(cache, [1, 1, 1, 1]).slot, [1, 1, 1, 1])
    lease(cache, [9, 9, 9])
    assert (
        lease(cache, [3, 3, 3, 3]).num_cached == 3 and lease(cache, [1, 1, 1, 1, 1]).num_cached == 4
    )


def test_slots_in_use_and_copy_sources_are_not_leased() -> None:
    cache = build_cache(2)
    first = lease(cache, [1, 2, 3, 4])
    cache.release(first.slot, [1, 2, 3, 4, 5])
    cache.begin_round()
    second = cache.lease([1, 2, 3, 9])
    assert second is not None and second.copy_from == first.slot
    assert cache.lease([5, 5, 5]) is None, "the only other slot is a copy source"
    cache.begin_round()
    third = cache.lease([5, 5, 5])
    assert third is not None and third.slot == first.slot
    cache.begin_round()
    assert cache.lease([6]) is None and cache.num_free == 0


def test_the_only_free_slot_is_truncated_to_the_shared_prefix() -> None:
    cache = build_cache(1)
    cache.release(lease(cache, [1, 2, 3]).slot, [1, 2, 3, 4, 5])
    assert lease(cache, [1, 2, 8, 8]) == Lease(0, None, 2, 0)
    cache.release(0, [1, 2, 8])
    assert lease(cache, [1, 2, 3, 4]).num_cached == 2, "its former content is gone"


def test_resizing_keeps_the_content_and_clearing_drops_it() -> None:
    cache = build_cache(2, 8)
    cache.release(lease(cache, [1, 2, 3]).slot, [1, 2, 3])
    cache.resize(5, 32)
    assert lease(cache, [1, 2, 3, 4]).num_cached == 3
    cache.clear()
    assert cache.num_free == 5 and lease(cache, [1, 2, 3, 4]).num_cached == 0


def test_a_continuation_is_found_without_comparing_all_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = build_cache(4)
    for ids in ([1, 2, 3], [1, 2, 4], [1, 2, 3, 9]):
        cache.release(lease(cache, ids).slot, ids)
    monkeypatch.setattr(cache, "_shared_lengths", None)
    assert lease(cache, [1, 2, 3, 9, 9, 9]).num_cached == 4, "the longest prefix"
    again = lease(cache, [1, 2, 4, 5])
    assert (again.num_cached, again.copy_from) == (3, None)
    twin = lease(cache, [1, 2, 4, 5])
    assert (twin.num_cached, twin.copy_from) == (3, again.slot), "in use, but exactly these ids"


def test_a_short_continuation_does_not_hide_a_longer_shared_prefix() -> None:
    cache = build_cache(4, 2 * MAX_TURN_TOKENS)
    short, long = [7] * 3, [7] * (MAX_TURN_TOKENS + 50)
    first = lease(cache, short)
    second = lease(cache, [*long, 1, 1])
    cache.release(first.slot, short)
    cache.release(second.slot, [*long, 1, 1])
    result = lease(cache, [*long, 2, 2])
    assert (result.num_cached, result.copy_from) == (len(long), second.slot)
