"""TRL's vLLM as an engine: whose weights it samples from, and what is left of a call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.engine.sampling import SamplingParams
from ludus.train.grpo.vllm_engine import VllmEngine


class _Vllm:
    """Speaks as TRL's does, and remembers when it was given weights."""

    mode = "colocate"

    def __init__(self, trainer: Any, *, fails: bool = False) -> None:
        self.max_completion_length = 256
        self.limits: list[int] = []
        self.synced: list[int] = []
        self._trainer, self._fails = trainer, fails

    def sync_weights(self) -> None:
        self.synced.append(self._trainer.state.global_step)

    def generate(self, prompts: list[list[int]], images: Any, num_generations: int) -> Any:
        self.limits.append(self.max_completion_length)
        if self._fails:
            raise RuntimeError("out of memory")
        replies = [[7] * self.max_completion_length for _ in prompts]
        return prompts, replies, [[[None] for _ in reply] for reply in replies], replies


def trained(**more: Any) -> tuple[Any, _Vllm]:
    """A trainer that has handed over its weights at its second step."""
    trainer = SimpleNamespace(state=SimpleNamespace(global_step=2), _last_loaded_step=2)
    trainer.vllm_generation = _Vllm(trainer, **more)
    return trainer, trainer.vllm_generation


def asked(size: int) -> list[Request]:
    return [Request((1, 2), size, frozenset(), SamplingParams(), 0)]


def test_weights_are_synced_only_when_they_changed() -> None:
    trainer, vllm = trained()
    engine = VllmEngine(trainer)
    engine.refresh()
    assert vllm.synced == []
    trainer.state.global_step = 3
    engine.refresh()
    engine.refresh()
    assert vllm.synced == [3]
    assert trainer._last_loaded_step == 3, "TRL need not do it again"


@pytest.mark.parametrize("fails", [False, True])
def test_the_length_limit_is_restored_after_a_call(fails: bool) -> None:
    trainer, vllm = trained(fails=fails)
    found: dict[int, Completion] = {}
    try:
        VllmEngine(trainer).run(asked(3), found.__setitem__, lambda at: True, lambda room: ())
    except RuntimeError:
        assert fails
    assert (vllm.limits, vllm.max_completion_length) == ([3], 256)
    assert [each.ids for each in found.values()] == ([] if fails else [(7, 7, 7)])
