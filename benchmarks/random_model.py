"""A random model of SmolLM2-135M's shape with a tokenizer and a chat template, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

VOCAB_SIZE = 49152
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_random_model(folder: Path, *, seed: int = 0) -> Path:
    """Save it in bfloat16, as `from_pretrained` reads it. It hardly ever ends a reply itself."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    # Prompts are split into bytes; all other tokens are words that only the model writes.
    tokens = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [f"Ġw{number}" for number in range(VOCAB_SIZE - len(tokens))]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    LlamaForCausalLM(smollm2_shape(bos_token_id=1)).to(torch.bfloat16).save_pretrained(folder)
    return folder


def smollm2_shape(**options: Any) -> Any:
    """A `LlamaConfig` of SmolLM2-135M's shape."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=0,
        **options,
    )
