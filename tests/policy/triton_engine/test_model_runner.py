"""How the cache grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.triton_engine import kv_cache
from ludus.policy.triton_engine.kv_cache import KVCache
from ludus.policy.triton_engine.triton_engine import TritonEngine
from policy.forwards import prompt, request
from policy.triton_engine.tiny_models import build_engine, build_model


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The sizes that a cache is resized to; every resize discards all graphs."""
    recorded: list[tuple[int, int]] = []
    resize = KVCache.resize

    def record(self: KVCache, num_slots: int, slot_length: int) -> None:
        recorded.append((num_slots, slot_length))
        resize(self, num_slots, slot_length)

    monkeypatch.setattr(KVCache, "resize", record)
    yield recorded


def run_one_by_one(engine: TritonEngine, number: int, **options: Any) -> None:
    """Each request arrives while those before it are running."""
    rest = [
        request(prompt(20, seed=n), seed=n, stop_token_ids=(), **options) for n in range(number)
    ]

    def poll(capacity: int) -> list[Request]:
        return [rest.pop()] if rest and capacity else []

    completions: dict[int, Completion] = {}
    engine.run([rest.pop()], completions.__setitem__, poll_requests=poll)
    assert len(completions) == number


def test_the_cache_is_allocated_once(sizes: list[tuple[int, int]]) -> None:
    engine = build_engine(build_model(max_position_embeddings=2048), max_batch=20)
    sizes.clear()
    run_one_by_one(engine, 20, max_tokens=200)
    assert sizes == [(20, 512)]


def test_short_memory_gives_fewer_slots(
    sizes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build_engine(build_model(max_position_embeddings=2048))
    slot_bytes = engine._runner.cache._bytes_per_token() * 512
    # One of them is the scratch slot.
    monkeypatch.setattr(kv_cache, "CPU_BUDGET_BYTES", slot_bytes * 9)
    sizes.clear()
    run_one_by_one(engine, 20, max_tokens=150)
    assert sizes == [(8, 512)]
