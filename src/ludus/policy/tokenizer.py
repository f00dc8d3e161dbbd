"""Load the tokenizer of a model without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ludus.errors import ConfigError, LudusError
from ludus.policy import gguf
from ludus.policy.hf_logging import suppress_hf_logging
from ludus.policy.load_errors import describe_load_error, require_transformers
from ludus.policy.model_ref import (
    ModelKind,
    ModelRef,
    check_name,
    resolve_base_model,
    resolve_model,
)
from ludus.policy.smollm2 import Notify

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LENGTH_WARNING = "sequence-length-is-longer-than-the-specified-maximum"
_LOADING_KWARGS = ("is_local", "local_files_only")


def load_tokenizer(name: str, *, notify: Notify | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder, a GGUF file, a Hub id (`org/name`) or `smollm2`.

    An adapter without a tokenizer has that of its base model. While the Hub cannot be reached, its
    local cache is used. Custom code of a model is not run.
    """
    check_name(name)
    require_transformers("Loading a tokenizer")
    return load_tokenizer_from(resolve_model(name, notify=notify))


def load_tokenizer_from(ref: ModelRef) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a resolved model."""
    if ref.kind is ModelKind.ADAPTER and not _has_tokenizer(ref):
        return load_tokenizer_from(resolve_base_model(ref))
    with suppress_hf_logging():
        tokenizer = _read_tokenizer(ref)
    if not tokenizer.is_fast:
        raise ConfigError(
            f"{ref.name} has only a slow tokenizer, which does not map tokens to characters. "
            "Name a model that has a tokenizer.json."
        )
    # Marks the warning as shown: Ludus reports the lengths of rows itself.
    tokenizer.deprecation_warnings[_LENGTH_WARNING] = True
    # Otherwise `save_pretrained` would write them into tokenizer_config.json.
    for name in _LOADING_KWARGS:
        tokenizer.init_kwargs.pop(name, None)
    return tokenizer


def _has_tokenizer(ref: ModelRef) -> bool:
    return any(Path(ref.path).glob("tokenizer*"))


def _read_tokenizer(ref: ModelRef) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    if ref.kind is ModelKind.FOLDER and not _has_tokenizer(ref):
        raise ConfigError(
            f"{ref.name} holds no tokenizer, so it is not a model. Name a folder with a "
            "tokenizer.json."
        )
    try:
        if ref.kind is ModelKind.GGUF:
            return gguf.read_tokenizer(Path(ref.path))
        return AutoTokenizer.from_pretrained(ref.path, **ref.loading_kwargs)
    except LudusError:
        raise
    except Exception as error:
        raise ConfigError(
            describe_load_error(ref.name, "tokenizer", error, hub_unreachable=ref.hub_unreachable)
        ) from None
