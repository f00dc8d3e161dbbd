"""A student's tokenizer, from wherever its model is.

Only the tokenizer is loaded, never the weights: what a row looks like to a model can be seen
without having the model. What its template does with a row is `ludus.policy.chat.rendering`' business,
and what to do where it has none is `ludus.policy.chat.chat_format`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ludus.errors import ConfigError, LudusError
from ludus.policy import gguf
from ludus.policy.hf_logging import require, suppress_hf_logging
from ludus.policy.load_errors import describe_load_error
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
    """The tokenizer of a model in a folder or a GGUF file, on the Hub (`org/name`), or `smollm2`.

    An adapter's is its own where it has one, and else that of the model it goes over. A model that
    is in the Hub's cache can be used while the Hub cannot be reached. Code that comes with a model
    is not run.
    """
    check_name(name)
    require("Reading a student's tokenizer")
    return load_tokenizer_from(resolve_model(name, notify=notify))


def load_tokenizer_from(source: ModelRef) -> PreTrainedTokenizerBase:
    """The tokenizer of a model that has been found."""
    if source.kind is ModelKind.ADAPTER and not _has_tokenizer(source):
        return load_tokenizer_from(resolve_base_model(source))
    with suppress_hf_logging():
        tokenizer = _read_tokenizer(source)
    if not tokenizer.is_fast:
        raise ConfigError(
            f"{source.name} has only a slow tokenizer, which cannot tell whose words a token is. "
            "Name a model that has a tokenizer.json."
        )
    # How long rows are is said by us, once, and not by a warning among the results.
    tokenizer.deprecation_warnings[_LENGTH_WARNING] = True
    # How it was loaded here is nothing that its copies should be saved with.
    for setting in _LOADING_KWARGS:
        tokenizer.init_kwargs.pop(setting, None)
    return tokenizer


def _has_tokenizer(source: ModelRef) -> bool:
    return any(Path(source.path).glob("tokenizer*"))


def _read_tokenizer(source: ModelRef) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    if source.kind is ModelKind.FOLDER and not _has_tokenizer(source):
        raise ConfigError(
            f"{source.name} holds no tokenizer, so it is no model. Name a folder with a "
            "tokenizer.json."
        )
    try:
        if source.kind is ModelKind.GGUF:
            return gguf.read_tokenizer(Path(source.path))
        local = source.cache_only or source.kind is not ModelKind.HUB
        return AutoTokenizer.from_pretrained(
            source.path, local_files_only=local, trust_remote_code=False
        )
    except LudusError:
        raise
    except Exception as error:
        raise ConfigError(
            describe_load_error(
                source.name, "tokenizer", error, hub_unreachable=source.hub_unreachable
            )
        ) from None
