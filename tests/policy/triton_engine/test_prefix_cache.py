"""Which slot a prompt gets, and what it finds there."""

from __future__ import annotations

import pytest

from ludus.policy.triton_engine.prefix_cache import (
    MAX_TURN_TOKENS,
    MIN_SHARED_TOKENS_TO_WAIT,
    Lease,
    PrefixCache,
)


def slots(number: int, length: int = 64) -> PrefixCache:
    made = PrefixCache()
    made.resize(number, length)
    return made


def lease(held: PrefixCache, ids: list[int]) -> Lease:
    """In a round of its own."""
    held.begin_round()
    found = held.lease(ids)
    assert found is not None
    return found


def test_a_slot_that_was_left_is_gone_on_with() -> None:
    held = slots(4)
    first = lease(held, [1, 2, 3])
    held.release(first.slot, [1, 2, 3, 4])
    assert lease(held, [1, 2, 3, 4, 5, 6]) == Lease(first.slot, None, 4, 0)


def test_a_slot_that_holds_more_is_copied_from_and_kept() -> None:
    held = slots(4)
    first = lease(held, [1, 2, 3])
    held.release(first.slot, [1, 2, 3, 4])
    other = lease(held, [1, 2, 9, 9])
    assert (other.copy_from, other.num_cached) == (first.slot, 2) and other.slot != first.slot
    assert lease(held, [1, 2, 3, 4, 5]).num_cached == 4


def test_members_of_a_group_wait_for_the_first_alone() -> None:
    held = slots(6)
    held.begin_round()
    ids = [7] * 10
    leases = [held.lease(ids) for _ in range(5)]
    assert [each and each.wave for each in leases] == [0, 1, 1, 1, 1]
    assert {each and each.copy_from for each in leases[1:]} == {leases[0] and leases[0].slot}


def test_prompts_that_only_begin_alike_do_not_wait_for_each_other() -> None:
    held = slots(4, MIN_SHARED_TOKENS_TO_WAIT + 50)
    held.begin_round()
    short = [held.lease([*range(30), last, 0]) for last in (40, 41)]
    assert [each and (each.wave, each.num_cached) for each in short] == [(0, 0), (0, 0)]
    long = [*range(100, 100 + MIN_SHARED_TOKENS_TO_WAIT)]
    far = [held.lease([*long, last, 0]) for last in (1, 2)]
    assert [each and (each.wave, each.num_cached) for each in far] == [
        (0, 0),
        (1, MIN_SHARED_TOKENS_TO_WAIT),
    ]


def test_the_slot_that_was_not_used_for_longest_goes_first() -> None:
    held = slots(3)
    for ids in ([1, 1, 1], [2, 2, 2], [3, 3, 3]):
        held.release(lease(held, ids).slot, ids)
    held.release(lease(held, [1, 1, 1, 1]).slot, [1, 1, 1, 1])
    lease(held, [9, 9, 9])
    assert (
        lease(held, [3, 3, 3, 3]).num_cached == 3 and lease(held, [1, 1, 1, 1, 1]).num_cached == 4
    )


def test_nobody_takes_a_slot_that_is_in_use_or_being_copied_from() -> None:
    held = slots(2)
    first = lease(held, [1, 2, 3, 4])
    held.release(first.slot, [1, 2, 3, 4, 5])
    held.begin_round()
    second = held.lease([1, 2, 3, 9])
    assert second is not None and second.copy_from == first.slot
    assert held.lease([5, 5, 5]) is None, "the only other one is about to be read from"
    held.begin_round()
    third = held.lease([5, 5, 5])
    assert third is not None and third.slot == first.slot
    held.begin_round()
    assert held.lease([6]) is None and held.num_free == 0


def test_the_only_free_slot_is_cut_back_to_what_is_of_use() -> None:
    held = slots(1)
    held.release(lease(held, [1, 2, 3]).slot, [1, 2, 3, 4, 5])
    assert lease(held, [1, 2, 8, 8]) == Lease(0, None, 2, 0)
    held.release(0, [1, 2, 8])
    assert lease(held, [1, 2, 3, 4]).num_cached == 2, "what it held before is gone"


def test_growing_keeps_what_is_held_and_forgetting_keeps_nothing() -> None:
    held = slots(2, 8)
    held.release(lease(held, [1, 2, 3]).slot, [1, 2, 3])
    held.resize(5, 32)
    assert lease(held, [1, 2, 3, 4]).num_cached == 3
    held.clear()
    assert held.num_free == 5 and lease(held, [1, 2, 3, 4]).num_cached == 0


def test_a_turn_that_goes_on_is_found_without_comparing_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = slots(4)
    for ids in ([1, 2, 3], [1, 2, 4], [1, 2, 3, 9]):
        held.release(lease(held, ids).slot, ids)
    monkeypatch.setattr(held, "_shared_lengths", None)
    assert lease(held, [1, 2, 3, 9, 9, 9]).num_cached == 4, "the longest that is gone on from"
    again = lease(held, [1, 2, 4, 5])
    assert (again.num_cached, again.copy_from) == (3, None)
    twin = lease(held, [1, 2, 4, 5])
    assert (twin.num_cached, twin.copy_from) == (3, again.slot), "in use, but it is just this"


def test_a_short_beginning_does_not_hide_a_long_one_that_another_shares() -> None:
    held = slots(4, 2 * MAX_TURN_TOKENS)
    short, long = [7] * 3, [7] * (MAX_TURN_TOKENS + 50)
    first = lease(held, short)
    second = lease(held, [*long, 1, 1])
    held.release(first.slot, short)
    held.release(second.slot, [*long, 1, 1])
    found = lease(held, [*long, 2, 2])
    assert (found.num_cached, found.copy_from) == (len(long), second.slot)
