"""Errors while decoding fail the requests concerned, and leave the engine in a correct state."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

import pytest
import torch

from ludus.policy.engine.batcher import RequestBatcher
from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.triton_engine.cuda_graphs import NoGraphRunner, Work
from ludus.policy.triton_engine.triton_engine import TritonEngine
from policy.forwards import GREEDY, prompt, request
from policy.triton_engine.tiny_models import (
    build_engine,
    build_model,
    complete,
    hf_generate,
    refusal_reason,
    shared_model,
)


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, at: int) -> None:
    """Let call number `at` run out of memory."""
    real, calls = getattr(owner, name), 0

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise torch.OutOfMemoryError("too much")
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapper)


def all_slots_free(engine: TritonEngine) -> bool:
    return engine._runner.prefix_cache.num_free == engine._runner.cache.num_slots


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_after_an_error_unfinished_work_is_not_reused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model, ids = build_model(), prompt(20)
    engine, requests = build_engine(model), [request(ids, sampling=GREEDY)]
    fail_once(monkeypatch, engine._runner._model, name, at=1)
    with pytest.raises(torch.OutOfMemoryError):
        complete(engine, requests)
    assert all_slots_free(engine)
    assert complete(engine, requests)[0].ids == hf_generate(model, ids)


def test_a_group_recovers_when_copying_its_prefix_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = build_model(), prompt(20)
    engine = build_engine(model)
    fail_once(monkeypatch, engine._runner.cache, "copy_prefixes", at=1)

    async def sample_group() -> list[Completion]:
        async with RequestBatcher(engine, batch_wait_s=0.05) as batcher:
            params: dict[str, Any] = {"max_tokens": 12, "stop_token_ids": {1}, "sampling": GREEDY}
            return await asyncio.gather(*(batcher.sample(ids, seed=n, **params) for n in range(4)))

    completions = asyncio.run(sample_group())
    assert {completion.ids for completion in completions} == {hf_generate(model, ids)}
    assert all_slots_free(engine)


def test_requests_that_finished_before_an_error_are_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, delivered = build_engine(shared_model()), dict[int, Completion]()
    fail_once(monkeypatch, engine._runner, "launch_steps", at=2)
    requests = [request(prompt(5), stop_token_ids=(), max_tokens=number) for number in (3, 30)]
    with pytest.raises(torch.OutOfMemoryError):
        engine.run(requests, delivered.__setitem__)
    assert {index: len(each.ids) for index, each in delivered.items()} == {0: 3}


def test_a_prompt_that_never_fits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build_engine(build_model(max_position_embeddings=4096))
    complete(engine, [request(prompt(5))])
    monkeypatch.setattr(engine._runner, "ensure_capacity", lambda length: None)
    with pytest.raises(RuntimeError, match="1012 tokens"):
        complete(engine, [request(prompt(1000))])


def test_the_cache_is_unchanged_when_growing_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(max_position_embeddings=2048)
    engine, long = build_engine(model), [request(prompt(900), sampling=GREEDY)]
    short: list[Request] = [request(prompt(9), sampling=GREEDY)]
    before = complete(engine, short)
    fail_once(monkeypatch, engine._runner.cache, "_rotary_emb", at=1)
    with pytest.raises(torch.OutOfMemoryError):
        complete(engine, long)
    assert complete(engine, short) == before
    assert complete(engine, long)[0].ids == hf_generate(model, prompt(900))


class IgnoresReplays(NoGraphRunner):
    """Does nothing when work is run a second time."""

    def __init__(self) -> None:
        self.keys: set[Hashable] = set()

    def run(self, key: Hashable, work: Work) -> Any:
        is_new = key not in self.keys
        self.keys.add(key)
        return work() if is_new else None


def test_an_engine_whose_replays_do_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.policy.triton_engine.model_runner.NoGraphRunner", IgnoresReplays)
    assert "invalid tokens" in refusal_reason(build_model())
