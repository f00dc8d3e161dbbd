"""GGUF files of a tiny Llama with its vocabulary, like that of SmolLM2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from policy.models import tiny

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1 and 2, as in SmolLM2."""
MAX_LENGTH = 8192
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TRAINING_TEXTS = [
    "What is  17 plus 25?\n\n  It is 42.",
    "user assistant system  \n\n plus  minus",
] * 4


def smollm_tokenizer() -> Any:
    """A byte-level tokenizer with a token for two spaces and one for two line ends."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[*SPECIAL_TOKENS],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(_TRAINING_TEXTS, trainer)
    tokenizer_class: Any = PreTrainedTokenizerFast
    end, start, stop = SPECIAL_TOKENS
    return tokenizer_class(tokenizer_object=backend, bos_token=start, eos_token=stop, pad_token=end)


def gguf_file(path: Path, *, quantized: bool = False, eos: int = 2, pad: int = 2) -> Path:
    """Write a tiny model and its tokenizer; with Q4_1 weights if `quantized`."""
    from gguf import GGUFWriter

    tokenizer = smollm_tokenizer()
    model = tiny(tokenizer)
    writer = GGUFWriter(path, "llama")
    _write_shape(writer, model.config)
    _write_vocabulary(writer, tokenizer)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(eos)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(pad)
    _write_tensors(writer, model, quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_shape(writer: Any, config: Any) -> None:
    writer.add_name("Tiny 1K 8k Lc100K Mix1 Ep2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(MAX_LENGTH)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)


def _write_vocabulary(writer: Any, tokenizer: Any) -> None:
    bpe = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL_TOKENS else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in bpe["merges"]])
    writer.add_chat_template(CHAT_TEMPLATE)


def _write_tensors(writer: Any, model: Any, quantized: bool) -> None:
    from gguf import MODEL_ARCH, GGMLQuantizationType, get_tensor_name_map
    from gguf.quants import quantize

    names = get_tensor_name_map(MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # Tied to the embedding, so the file does not contain it.
        values = _interleave_rotary(name, tensor, model.config).numpy()
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        if quantized and values.ndim == 2:
            kind = GGMLQuantizationType.Q4_1
            writer.add_tensor(gguf_name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name, values)


def _interleave_rotary(name: str, tensor: Any, config: Any) -> Any:
    """GGUF interleaves the rotary halves, which transformers concatenates."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    num_heads = next((count for part, count in heads.items() if part in name), None)
    if num_heads is None:
        return tensor
    return (
        tensor.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).reshape(tensor.shape).contiguous()
    )
