"""Tiny random models of the supported architectures, and helpers to decode with them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
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

VOCAB_SIZE, CONTEXT = 97, 64
_MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
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
    "mistral, windows": (MistralConfig, MistralForCausalLM, {"sliding_window": 7}),
    "gemma3": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 20,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
}
MODEL_NAMES = tuple(_MODELS)


def build_model(name: str = "llama", **overrides: Any) -> Any:
    """A new model, which the test may change."""
    config_class, model_class, specifics = _MODELS[name]
    config = {
        "vocab_size": VOCAB_SIZE,
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
        model = model_class(config_class(**config | specifics | overrides))
        # Norms start as ones and biases as zeros, which would hide that they are left out.
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                torch.nn.init.normal_(weight, 0.8, 0.3)
    return model.eval()


@cache
def shared_model(name: str = "llama") -> Any:
    """A model that tests share and must not change."""
    return build_model(name)


def build_engine(model: Any, **options: Any) -> TritonEngine:
    engine = build_triton_engine(model, **({"max_batch": 256} | options))
    assert isinstance(engine, TritonEngine), engine
    return engine


def refusal_reason(model: Any) -> str:
    """Why the engine does not support the model."""
    reason = build_triton_engine(model, max_batch=8)
    assert isinstance(reason, str)
    return reason


def complete(engine: TritonEngine, requests: Sequence[Request], **options: Any) -> list[Completion]:
    completions: dict[int, Completion] = {}
    engine.run(requests, completions.__setitem__, **options)
    return [completions[index] for index in range(len(completions))]


def hf_generate(model: Any, ids: Sequence[int], tokens: int = 12) -> tuple[int, ...]:
    """Greedy completion by transformers' own `generate`."""
    inputs = torch.tensor([ids], device=model.device)
    output = model.generate(
        inputs, do_sample=False, max_new_tokens=tokens, eos_token_id=1, pad_token_id=0
    )
    return tuple(output[0, len(ids) :].tolist())
