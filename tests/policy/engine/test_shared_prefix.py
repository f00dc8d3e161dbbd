"""Attention over a common prefix against the attention of transformers over repeated entries."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from ludus.policy.engine import shared_prefix
from ludus.policy.engine.shared_prefix import SharedPrefix, supports_shared_prefix
from policy.forwards import model_of, prompt

PREFIX, REST = 12, 5
ROWS = 3


def prefill(model: Any, ids: torch.Tensor) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    model(ids, past_key_values=cache)
    return cache


def compare_logits(model: Any, mask: torch.Tensor | None = None) -> tuple[Any, Any]:
    """Logits of two forward passes after a prefix: with shared and with repeated entries."""
    prefix = torch.tensor([prompt(PREFIX, seed=1)])
    rest = torch.tensor([prompt(REST, seed=seed) for seed in range(2, 2 + ROWS)])
    following = torch.tensor([[7], [8], [9]])
    if mask is None:
        mask = torch.ones(ROWS, REST, dtype=torch.long)
    results = []
    with torch.inference_mode():
        for shared in (True, False):
            cache = prefill(model, prefix)
            cached = torch.ones(ROWS, 0 if shared else PREFIX, dtype=torch.long)
            if shared:
                common, cache = SharedPrefix(model, cache), DynamicCache(config=model.config)
            else:
                cache.batch_repeat_interleave(ROWS)
            passes = []
            ids, seen = rest, torch.cat([cached, mask], dim=1)
            for _ in range(2):
                positions = PREFIX + seen[:, cached.shape[1] :].cumsum(1) - 1
                inputs = {
                    "input_ids": ids,
                    "attention_mask": seen,
                    "position_ids": positions[:, -ids.shape[1] :].clamp(min=0),
                    "past_key_values": cache,
                }
                if shared:
                    with common.attend():
                        passes.append(model(**inputs).logits[:, -1])
                else:
                    passes.append(model(**inputs).logits[:, -1])
                ids = following
                seen = torch.cat([seen, torch.ones(ROWS, 1, dtype=torch.long)], dim=1)
            assert cache.get_seq_length() == cached.shape[1] + REST + 1
            results.append(torch.stack(passes))
    return results[0], results[1]


@pytest.mark.parametrize("max_scores", [1 << 26, 1], ids=["at once", "row by row"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_logits_are_those_over_repeated_entries(
    architecture: str, padded: bool, max_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_prefix, "_MAX_SCORES", max_scores)
    mask = torch.ones(ROWS, REST, dtype=torch.long)
    if padded:
        mask[0, :2] = mask[2, :1] = 0
    shared, repeated = compare_logits(model_of(architecture), mask)
    torch.testing.assert_close(shared, repeated, atol=1e-4, rtol=1e-4)
    assert shared.std(dim=1).max() > 0.1, "the rows differ"


def test_scores_in_bfloat16_models_are_float32() -> None:
    exact = compare_logits(model_of("llama"))[1]
    shared, repeated = (
        (logits.float() - exact).abs().mean()
        for logits in compare_logits(deepcopy(model_of("llama")).bfloat16())
    )
    assert shared < 1.5 * repeated


def test_the_models_own_attention_is_restored() -> None:
    model = model_of("llama")
    common = SharedPrefix(model, prefill(model, torch.tensor([prompt(PREFIX)])))
    with pytest.raises(RuntimeError, match="stop"), common.attend():
        assert not supports_shared_prefix(model)
        raise RuntimeError("stop")
    assert supports_shared_prefix(model)
    assert model.config._attn_implementation == "sdpa"
