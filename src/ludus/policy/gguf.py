"""Models out of GGUF files, as plain models of transformers that can be trained and saved.

The converters in transformers leave a few things undone; they are done here, so that a model out of
such a file reads, stops and saves as the model that the file was made from. Which file is meant is
`ludus.policy.model_ref`'s business, and errors are told by those who call.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.policy.hf_logging import require

_SMOLLM_PRE_TOKENIZER = "smollm"
_SMOLLM_PAD, _SMOLLM_EOS = "<|endoftext|>", "<|im_end|>"
"""SmolLM's marks. Its files call the end of a turn the padding too, which would teach a model that
is trained on padded rows never to end its turn."""


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a file says about its vocabulary, as far as the converters do not heed it."""

    pre_tokenizer: str
    max_length: int | None
    eos_token_id: int | None
    pad_token_id: int | None


def read_tokenizer(file: Path) -> Any:
    """The file's tokenizer."""
    require("Reading a GGUF file", "gguf")
    from transformers import AutoTokenizer

    header = _read_header(file)
    tokenizer = AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, trust_remote_code=False
    )
    if header.pre_tokenizer == _SMOLLM_PRE_TOKENIZER:
        _split_digits(tokenizer)
    if header.max_length is not None:
        tokenizer.model_max_length = header.max_length
    for name, number in (("eos_token", header.eos_token_id), ("pad_token", header.pad_token_id)):
        if number is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(number))
    # Said in so many words, also in what is saved: where nothing is said, some versions of
    # transformers take it for true, and complain that it would spoil such a vocabulary's text.
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.init_kwargs["clean_up_tokenization_spaces"] = False
    return tokenizer


def read_model(file: Path, *, dtype: str) -> tuple[Any, dict[str, Any]]:
    """The file's weights, unpacked, and what transformers says of the loading."""
    require("Reading a GGUF file", "gguf", "accelerate")
    from transformers import AutoModelForCausalLM

    # The converter's bar has no switch.
    with redirect_stderr(io.StringIO()):
        model, info = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=dtype,
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
            **_dequantize_kwargs(),
        )
    _clear_quantization_state(model)
    _set_special_token_ids(model, _read_header(file))
    return model, info


def _dequantize_kwargs() -> dict[str, Any]:
    """Weights left in blocks can be neither trained nor saved."""
    import transformers

    kind = getattr(transformers, "GgufConfig", None)
    return {} if kind is None else {"quantization_config": kind(dequantize=True)}


def _clear_quantization_state(model: Any) -> None:
    """The weights are plain now; while the model does not say so, it refuses to be saved."""
    for owner, names in (
        (model, ("hf_quantizer", "quantization_method")),
        (model.config, ("quantization_config", "_pre_quantization_dtype", "_model_name_or_path")),
    ):
        for name in names:
            with suppress(AttributeError):
                delattr(owner, name)
    model.is_quantized = False


def _set_special_token_ids(model: Any, header: GGUFHeader) -> None:
    for config in (model.config, model.generation_config):
        if header.eos_token_id is not None:
            config.eos_token_id = header.eos_token_id
        if header.pad_token_id is not None:
            config.pad_token_id = header.pad_token_id


def _split_digits(tokenizer: Any) -> None:
    """Digits stand alone, apart from the spaces before them."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )


def _read_header(file: Path) -> GGUFHeader:
    from gguf import GGUFReader

    fields = GGUFReader(file).fields

    def read(key: str) -> Any:
        return fields[key].contents() if key in fields else None

    pre = read("tokenizer.ggml.pre") or ""
    eos, pad = read("tokenizer.ggml.eos_token_id"), read("tokenizer.ggml.padding_token_id")
    if pre == _SMOLLM_PRE_TOKENIZER:
        ids = {token: number for number, token in enumerate(read("tokenizer.ggml.tokens"))}
        eos, pad = ids.get(_SMOLLM_EOS, eos), ids.get(_SMOLLM_PAD, pad)
    longest = read(f"{read('general.architecture')}.context_length")
    return GGUFHeader(pre_tokenizer=pre, max_length=longest, eos_token_id=eos, pad_token_id=pad)
