"""GGUF files for tests: a tiny Llama with its vocabulary in one file, as SmolLM2's is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from policy.models import tiny

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1 and 2, as in SmolLM2."""
LONGEST = 8192
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WORDS = ["What is  17 plus 25?\n\n  It is 42.", "user assistant system  \n\n plus  minus"] * 4


def speller() -> Any:
    """A byte-level tokenizer with a token for two spaces and one for two line ends."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=[*MARKS], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(_WORDS, trainer)
    make: Any = PreTrainedTokenizerFast
    end, start, stop = MARKS
    return make(tokenizer_object=made, bos_token=start, eos_token=stop, pad_token=end)


def gguf_file(
    path: Path, *, pre: str = "smollm", quantized: bool = False, eos: int = 2, pad: int = 2
) -> Path:
    """The tiny model over `speller` in one file; quantized, its weights lie in blocks of Q4_1."""
    from gguf import GGUFWriter

    tokenizer = speller()
    model = tiny(tokenizer)
    writer = GGUFWriter(path, "llama")
    _shape(writer, model.config)
    _vocabulary(writer, tokenizer, pre)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(eos)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(pad)
    _tensors(writer, model, quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shape(writer: Any, config: Any) -> None:
    writer.add_name("Tiny 1K 8k Lc100K Mix1 Ep2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(LONGEST)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)


def _vocabulary(writer: Any, tokenizer: Any, pre: str) -> None:
    spelled = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(spelled["vocab"], key=spelled["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in MARKS else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in spelled["merges"]])
    writer.add_chat_template(CHAT)


def _tensors(writer: Any, model: Any, quantized: bool) -> None:
    from gguf import MODEL_ARCH, GGMLQuantizationType, get_tensor_name_map
    from gguf.quants import quantize

    names = get_tensor_name_map(MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # Tied to the embedding: such a file does not hold it.
        values = _interleaved(name, tensor, model.config).numpy()
        known = names.get_name(name, try_suffixes=(".weight",))
        if quantized and values.ndim == 2:
            kind = GGMLQuantizationType.Q4_1
            writer.add_tensor(known, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(known, values)


def _interleaved(name: str, tensor: Any, config: Any) -> Any:
    """Rotary halves lie side by side in these files, and one after the other in transformers."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    found = next((count for part, count in heads.items() if part in name), None)
    if found is None:
        return tensor
    return tensor.unflatten(0, (found, 2, -1)).transpose(1, 2).reshape(tensor.shape).contiguous()
