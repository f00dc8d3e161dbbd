"""What goes wrong on the way costs those whom it befell, and leaves nothing wrong behind."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any, cast

import pytest
import torch

from ludus.policy.engine.batcher import RequestBatcher
from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.triton_engine.cuda_graphs import EagerRunner, Work
from ludus.policy.triton_engine.triton_engine import TritonEngine
from policy.forwards import GREEDY, prompt, request
from policy.triton_engine.families import engine_of, fresh, generated, model_of, refusal, said


def failing_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, at: int) -> None:
    """Its call of that number finds no memory."""
    real, calls = getattr(owner, name), 0

    def once(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise torch.OutOfMemoryError("too much")
        return real(*given, **more)

    monkeypatch.setattr(owner, name, once)


def free(engine: TritonEngine) -> bool:
    return engine._runner.prefix_cache.num_free == engine._runner.cache.num_slots


@pytest.mark.parametrize("name", ["read", "step"])
def test_after_an_error_nothing_is_taken_for_read_that_was_not(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model, ids = fresh(), prompt(20)
    engine, asked = engine_of(model), [request(ids, sampling=GREEDY)]
    failing_once(monkeypatch, engine._runner._model, name, at=1)
    with pytest.raises(torch.OutOfMemoryError):
        said(engine, asked)
    assert free(engine)
    assert said(engine, asked)[0].ids == generated(model, ids)


def test_members_of_a_group_are_not_given_what_their_first_could_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, ids = fresh(), prompt(20)
    engine = engine_of(model)
    failing_once(monkeypatch, engine._runner.cache, "copy", at=1)

    async def group() -> list[Completion]:
        async with RequestBatcher(model, engine=engine, batch_wait_s=0.05) as asked:
            how: dict[str, Any] = {"max_tokens": 12, "stop_token_ids": {1}, "sampling": GREEDY}
            return await asyncio.gather(*(asked.sample(ids, seed=n, **how) for n in range(4)))

    assert {reply.ids for reply in asyncio.run(group())} == {generated(model, ids)}
    assert free(engine)


def test_who_had_ended_before_an_error_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, told = engine_of(model_of()), dict[int, Completion]()
    failing_once(monkeypatch, engine._runner, "advance", at=2)
    asked = [request(prompt(5), stop_token_ids=(), max_tokens=number) for number in (3, 30)]
    with pytest.raises(torch.OutOfMemoryError):
        engine.run(asked, told.__setitem__)
    assert {at: len(reply.ids) for at, reply in told.items()} == {0: 3}


def test_a_prompt_for_which_there_is_never_room_is_an_error_and_no_endless_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of(fresh(max_position_embeddings=4096))
    said(engine, [request(prompt(5))])
    monkeypatch.setattr(engine._runner, "ensure_capacity", lambda number, length: None)
    with pytest.raises(RuntimeError, match="no room for 1012 tokens, though nothing else"):
        said(engine, [request(prompt(1000))])


def test_a_cache_that_could_not_grow_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh(max_position_embeddings=2048)
    engine, long = engine_of(model), [request(prompt(900), sampling=GREEDY)]
    short: list[Request] = [request(prompt(9), sampling=GREEDY)]
    before = said(engine, short)
    failing_once(monkeypatch, engine._runner.cache, "_tables", at=1)
    with pytest.raises(torch.OutOfMemoryError):
        said(engine, long)
    assert said(engine, short) == before
    assert said(engine, long)[0].ids == generated(model, prompt(900))


class Forgetful(EagerRunner):
    """Nothing comes of what it is told a second time."""

    def __init__(self) -> None:
        self.told: set[Hashable] = set()

    def run(self, key: Hashable, work: Work) -> Any:
        new = key not in self.told
        self.told.add(key)
        return work() if new else None


class Drifting(EagerRunner):
    """What it does is another thing each time."""

    def run(self, key: Hashable, work: Work) -> Any:
        made, machine = work(), cast(Any, work).func.__self__
        machine._network.weights.head.mul_(1.5)
        return made


@pytest.mark.parametrize(
    ("graphs", "reason"),
    [(Forgetful, "what it draws is no token"), (Drifting, "it does not draw the same again")],
)
def test_a_machine_that_does_not_repeat_what_it_was_shown_is_not_used(
    monkeypatch: pytest.MonkeyPatch, graphs: type[EagerRunner], reason: str
) -> None:
    monkeypatch.setattr("ludus.policy.triton_engine.model_runner.EagerRunner", graphs)
    assert refusal(fresh()) == reason
