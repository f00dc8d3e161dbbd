"""Tiny random models of three architectures, and reference results of their forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.engine.hf_decoder import HFDecoder
from ludus.policy.engine.sampling import SamplingParams

WORDS = 97
CONTEXT = 64
ARCHITECTURES = ("llama", "gpt2", "lfm2")
GREEDY = SamplingParams(temperature=0)


@cache
def model_of(architecture: str) -> Any:
    """Grouped-query attention with RoPE, learned positions, or convolutions between attention.

    Large initial weights make the logits distinct.
    """
    make: Any = {"llama": _llama, "gpt2": _gpt2, "lfm2": _lfm2}[architecture]
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return make().eval()


def _llama() -> Any:
    make: Any = LlamaForCausalLM  # transformers has no types for it.
    return make(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            initializer_range=0.3,
        )
    )


def _lfm2() -> Any:
    make: Any = Lfm2ForCausalLM
    return make(
        Lfm2Config(
            vocab_size=WORDS,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            layer_types=["conv", "full_attention", "conv"],
            max_position_embeddings=CONTEXT,
            initializer_range=0.3,
        )
    )


def _gpt2() -> Any:
    make: Any = GPT2LMHeadModel
    return make(
        GPT2Config(
            vocab_size=WORDS,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=CONTEXT,
            initializer_range=0.3,
            bos_token_id=0,
            eos_token_id=1,
        )
    )


def prompt(length: int, *, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(2, WORDS, (length,), generator=generator).tolist()
    return tuple(ids)


def request(ids: Sequence[int], **kwargs: Any) -> Request:
    defaults: dict[str, Any] = {
        "max_tokens": 12,
        "stop_token_ids": (1,),
        "sampling": SamplingParams(),
        "seed": 0,
    }
    return Request(tuple(ids), **(defaults | kwargs))


def complete(model: Any, requests: Sequence[Request], **kwargs: Any) -> list[Completion]:
    """Decode a batch with the HF decoder."""
    completions: dict[int, Completion] = {}
    HFDecoder(model, pad_id=0).run(requests, completions.__setitem__, **kwargs)
    return [completions[index] for index in range(len(requests))]


def fresh_logprobs(
    model: Any, prompt_ids: Sequence[int], reply_ids: Sequence[int], *, temperature: float = 1.0
) -> list[float]:
    """Log-probabilities of the sampled ids, by one forward pass over prompt and reply."""
    with torch.inference_mode():
        logits = (
            model(torch.tensor([[*prompt_ids, *reply_ids]], device=model.device)).logits[0].float()
        )
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    rows = range(len(prompt_ids) - 1, len(prompt_ids) + len(reply_ids) - 1)
    return [float(logprobs[row, token]) for row, token in zip(rows, reply_ids, strict=True)]
