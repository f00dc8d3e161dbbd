"""How much room is made, how often, and in how many launches steps go out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.triton_engine.batch_state import MAX_STEPS_PER_FETCH
from ludus.policy.triton_engine.kv_cache import KVCache
from ludus.policy.triton_engine.model_runner import LONG_LAUNCH_STEPS, _launch_sizes
from ludus.policy.triton_engine.triton_engine import TritonEngine
from policy.forwards import prompt, request
from policy.triton_engine.families import engine_of, fresh


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Those that a cache is given, each of which costs every graph."""
    seen: list[tuple[int, int]] = []
    resize = KVCache.resize

    def noted(self: KVCache, slots: int, length: int) -> None:
        seen.append((slots, length))
        resize(self, slots, length)

    monkeypatch.setattr(KVCache, "resize", noted)
    yield seen


def asked_one_by_one(engine: TritonEngine, number: int, **more: Any) -> None:
    """Each comes when those before it are under way."""
    rest = [request(prompt(20, seed=n), seed=n, stop_token_ids=(), **more) for n in range(number)]

    def next_one(room: int) -> list[Request]:
        return [rest.pop()] if rest and room else []

    told: dict[int, Completion] = {}
    engine.run([rest.pop()], told.__setitem__, poll_requests=next_one)
    assert len(told) == number


def test_room_is_made_once_for_as_many_as_are_expected(sizes: list[tuple[int, int]]) -> None:
    engine = engine_of(fresh(max_position_embeddings=2048), max_batch=20, expected=20)
    sizes.clear()
    asked_one_by_one(engine, 20, max_tokens=200)
    assert sizes == [(20, 512)]


def test_room_for_more_than_were_expected_is_made_in_large_steps(
    sizes: list[tuple[int, int]],
) -> None:
    engine = engine_of(fresh(max_position_embeddings=2048), max_batch=40, expected=3)
    engine.reserve_capacity(rows=3, length=600)
    sizes.clear()
    asked_one_by_one(engine, 30, max_tokens=300)
    assert sizes == [(3, 1024), (12, 1024), (40, 1024)]


def test_a_little_more_memory_is_no_reason_to_grow(
    sizes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(fresh(max_position_embeddings=2048), expected=8)
    each = engine._runner.cache._bytes_per_token() * 512
    room = [9, 10, 10, 10, 14]  # One is the place for what nobody looks at.
    monkeypatch.setattr(
        KVCache, "_allowed", lambda self: each * (room.pop(0) if room[1:] else room[0])
    )
    sizes.clear()
    asked_one_by_one(engine, 20, max_tokens=150)
    assert sizes == [(8, 512), (13, 512)]


@pytest.mark.parametrize("steps", range(1, MAX_STEPS_PER_FETCH + 1))
def test_steps_go_out_in_few_launches_of_few_sizes(steps: int) -> None:
    launched = list(_launch_sizes(steps))
    assert steps <= sum(launched) <= min(MAX_STEPS_PER_FETCH, steps + 1)
    assert {*launched} <= {2, LONG_LAUNCH_STEPS} and len(launched) <= 3
