"""TRL's vLLM as an engine: weight syncing, stop tokens and length limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.engine.sampling import SamplingParams
from ludus.train.grpo.policy_agent import VllmEngine


class FakeVllm:
    """Has the interface of TRL's `vllm_generation`, and records its calls."""

    mode = "colocate"

    def __init__(self, trainer: Any, *, fails: bool = False) -> None:
        self.max_completion_length = 256
        self.limits: list[int] = []
        self.synced: list[int] = []
        self._trainer, self._fails = trainer, fails

    def sync_weights(self) -> None:
        self.synced.append(self._trainer.state.global_step)

    def generate(self, prompts: list[list[int]], images: Any, num_generations: int) -> Any:
        assert images is None and num_generations == 1
        self.limits.append(self.max_completion_length)
        if self._fails:
            raise RuntimeError("out of memory")
        replies = [[*range(10, 10 + self.max_completion_length)] for _ in prompts]
        return prompts, replies, [[[None] for _ in reply] for reply in replies], replies


def build_trainer(**options: Any) -> tuple[Any, FakeVllm]:
    """A trainer that synced its weights at its second step."""
    trainer = SimpleNamespace(state=SimpleNamespace(global_step=2), _last_loaded_step=2)
    trainer.vllm_generation = FakeVllm(trainer, **options)
    return trainer, trainer.vllm_generation


def build_request(max_tokens: int, stop_token: int = 99) -> Request:
    return Request((1, 2), max_tokens, frozenset({stop_token}), SamplingParams(), 0)


def test_weights_are_synced_only_when_they_changed() -> None:
    trainer, vllm = build_trainer()
    engine = VllmEngine(trainer)
    engine.refresh()
    assert vllm.synced == []
    trainer.state.global_step = 3
    engine.refresh()
    engine.refresh()
    assert vllm.synced == [3]
    assert trainer._last_loaded_step == 3, "so that TRL does not sync again"


@pytest.mark.parametrize("fails", [False, True])
def test_the_length_limit_is_restored_after_a_call(fails: bool) -> None:
    trainer, vllm = build_trainer(fails=fails)
    completions: dict[int, Completion] = {}
    try:
        VllmEngine(trainer).run(
            [build_request(3)], completions.__setitem__, lambda at: True, lambda room: ()
        )
    except RuntimeError:
        assert fails
    assert (vllm.limits, vllm.max_completion_length) == ([3], 256)
    assert [each.ids for each in completions.values()] == ([] if fails else [(10, 11, 12)])


def test_replies_end_at_their_budget_or_stop_token() -> None:
    trainer, _ = build_trainer()
    engine = VllmEngine(trainer)
    requests = [build_request(4), build_request(2), build_request(4, stop_token=12)]
    unwanted = build_request(4)
    completions: dict[int, Completion] = {}
    engine.run([*requests, unwanted], completions.__setitem__, lambda at: at != 3, lambda room: ())
    assert {at: (each.ids, each.stopped) for at, each in completions.items()} == {
        0: ((10, 11, 12, 13), False), 1: ((10, 11), False), 2: ((10, 11, 12), True),
    }  # fmt: skip
    assert all(len(each.logprobs) == len(each.ids) for each in completions.values())
