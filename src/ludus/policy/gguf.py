"""Read GGUF files as plain transformers models that can be trained and saved.

The converters in transformers ignore some of a file's metadata; here it is applied, so that the
model tokenizes, stops and saves like the model that the file was made from.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.data.tool_schema import JsonObject
from ludus.policy.hf_loading import require_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SMOLLM_PRE_TOKENIZER = "smollm"
_SMOLLM_PAD, _SMOLLM_EOS = "<|endoftext|>", "<|im_end|>"
"""SmolLM's special tokens. Its files name the end-of-turn token as padding too; padding is masked
out of the loss, so a model trained that way would never learn to end its turn."""


def read_tokenizer(file: Path) -> PreTrainedTokenizerBase:
    """Read the tokenizer of a GGUF file."""
    require_transformers("Reading a GGUF file", "gguf")
    from transformers import AutoTokenizer

    header = _read_header(file)
    tokenizer = AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, trust_remote_code=False
    )
    if header["pre_tokenizer"] == _SMOLLM_PRE_TOKENIZER:
        from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

        # SmolLM makes one token of each digit.
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
        )
    if header["max_length"] is not None:
        tokenizer.model_max_length = header["max_length"]
    for name in ("eos_token", "pad_token"):
        if (token_id := header[f"{name}_id"]) is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(token_id))
    # Set explicitly, also in what is saved: some versions of transformers default to True, and warn
    # that this alters the text of a BPE vocabulary.
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.init_kwargs["clean_up_tokenization_spaces"] = False
    return tokenizer


def read_model(file: Path, *, dtype: str) -> tuple[PreTrainedModel, JsonObject]:
    """Read the dequantized weights of a GGUF file, with the loading info of transformers."""
    require_transformers("Reading a GGUF file", "gguf", "accelerate")
    import transformers
    from transformers import AutoModelForCausalLM

    config_class = getattr(transformers, "GgufConfig", None)
    # Quantized weights can be neither trained nor saved. Older versions always dequantize.
    kwargs = {} if config_class is None else {"quantization_config": config_class(dequantize=True)}
    # The converter's progress bar cannot be switched off.
    with redirect_stderr(io.StringIO()):
        model, info = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=dtype,
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
            **kwargs,
        )
    # Remove what marks the model as quantized: `save_pretrained` would refuse it.
    for owner, names in (
        (model, ("hf_quantizer", "quantization_method")),
        (model.config, ("quantization_config", "_pre_quantization_dtype", "_model_name_or_path")),
    ):
        for name in names:
            with suppress(AttributeError):
                delattr(owner, name)
    model.is_quantized = False
    header = _read_header(file)
    for config in (model.config, model.generation_config):
        for name in ("eos_token_id", "pad_token_id"):
            if header[name] is not None:
                setattr(config, name, header[name])
    return model, info


def _read_header(file: Path) -> JsonObject:
    """Read the tokenizer metadata that the converters in transformers ignore."""
    from gguf import GGUFReader

    fields = GGUFReader(file).fields

    def read(key: str) -> Any:
        return fields[key].contents() if key in fields else None

    pre = read("tokenizer.ggml.pre") or ""
    eos, pad = read("tokenizer.ggml.eos_token_id"), read("tokenizer.ggml.padding_token_id")
    if pre == _SMOLLM_PRE_TOKENIZER:
        ids = {token: token_id for token_id, token in enumerate(read("tokenizer.ggml.tokens"))}
        eos, pad = ids.get(_SMOLLM_EOS, eos), ids.get(_SMOLLM_PAD, pad)
    max_length = read(f"{read('general.architecture')}.context_length")
    return {
        "pre_tokenizer": pre,
        "max_length": max_length,
        "eos_token_id": eos,
        "pad_token_id": pad,
    }
