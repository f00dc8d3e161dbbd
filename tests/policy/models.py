"""Tiny random models for any tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_tokenizers import student


def tiny(tokenizer: Any, *, seed: int = 0) -> Any:
    """A Llama of two layers; the same weights for the same seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def saved(folder: Path, tokenizer: Any = None, *, seed: int = 0) -> Path:
    """A tiny model and its tokenizer in a folder, as `from_pretrained` reads them."""
    tokenizer = student() if tokenizer is None else tokenizer
    tiny(tokenizer, seed=seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def adapted(folder: Path, base: Path | str, *, seed: int = 0) -> Path:
    """A LoRA adapter over the model in `base`, with random weights."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config: Any = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    model.save_pretrained(folder)
    return folder
