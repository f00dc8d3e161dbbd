"""Tiny random models of the families that can be decoded fast, and how they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.triton_engine.triton_engine import TritonEngine, build_triton_engine

WORDS, CONTEXT = 97, 64
_KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama, tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama, one group": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 6}),
    "llama, scaled": (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    ),
    "llama, biased": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
}
FAMILIES = tuple(_KINDS)


def fresh(kind: str = "llama", **more: Any) -> Any:
    """A model of which nobody else knows."""
    config, make, special = _KINDS[kind]
    given = {
        "vocab_size": WORDS,
        "hidden_size": 96,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
    }
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = make(config(**given | special | more))
        # Norms and biases begin as ones and zeros, which would hide that they are left out.
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                torch.nn.init.normal_(weight, 0.8, 0.3)
    return model.eval()


@cache
def model_of(kind: str = "llama") -> Any:
    return fresh(kind)


def engine_of(model: Any, **more: Any) -> TritonEngine:
    made = build_triton_engine(model, **({"max_batch": 256} | more))
    assert isinstance(made, TritonEngine), made
    return made


def refusal(model: Any) -> str:
    """Why it cannot be decoded fast."""
    words = build_triton_engine(model, max_batch=8)
    assert isinstance(words, str)
    return words


def said(engine: TritonEngine, requests: Sequence[Request], **more: Any) -> list[Completion]:
    told: dict[int, Completion] = {}
    engine.run(requests, told.__setitem__, **more)
    return [told[at] for at in range(len(told))]


def generated(model: Any, ids: Sequence[int], tokens: int = 12) -> tuple[int, ...]:
    """What transformers' own greedy search says."""
    given = torch.tensor([ids], device=model.device)
    made = model.generate(
        given, do_sample=False, max_new_tokens=tokens, eos_token_id=1, pad_token_id=0
    )
    return tuple(made[0, len(ids) :].tolist())
