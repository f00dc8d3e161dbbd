"""A student's tokenizer, from wherever its model is.

Only the tokenizer is loaded, never the weights: what a row looks like to a model can be seen
without having the model. What its template does with a row is `ludus.policy.templates`' business,
and what to do where it has none is `ludus.policy.dialect`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ludus.errors import ConfigError, LudusError
from ludus.policy import gguf
from ludus.policy.complaint import why
from ludus.policy.quiet import quiet, require
from ludus.policy.smollm2 import Say
from ludus.policy.source import Kind, Source, base_of, check_name, find

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"
_HOW_LOADED = ("is_local", "local_files_only")


def load_tokenizer(student: str, *, say: Say | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model in a folder or a GGUF file, on the Hub (`org/name`), or `smollm2`.

    An adapter's is its own where it has one, and else that of the model it goes over. A model that
    is in the Hub's cache can be used while the Hub cannot be reached. Code that comes with a model
    is not run.
    """
    check_name(student)
    require("Reading a student's tokenizer")
    return tokenizer_of(find(student, say=say))


def tokenizer_of(source: Source) -> PreTrainedTokenizerBase:
    """The tokenizer of a model that has been found."""
    if source.kind is Kind.ADAPTER and not _has_tokenizer(source):
        return tokenizer_of(base_of(source))
    with quiet():
        tokenizer = _read(source)
    if not tokenizer.is_fast:
        raise ConfigError(
            f"{source.name} has only a slow tokenizer, which cannot tell whose words a token is. "
            "Name a model that has a tokenizer.json."
        )
    # How long rows are is said by us, once, and not by a warning among the results.
    tokenizer.deprecation_warnings[_TOO_LONG] = True
    # How it was loaded here is nothing that its copies should be saved with.
    for setting in _HOW_LOADED:
        tokenizer.init_kwargs.pop(setting, None)
    return tokenizer


def _has_tokenizer(source: Source) -> bool:
    return any(Path(source.path).glob("tokenizer*"))


def _read(source: Source) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    if source.kind is Kind.FOLDER and not _has_tokenizer(source):
        raise ConfigError(
            f"{source.name} holds no tokenizer, so it is no model. Name a folder with a "
            "tokenizer.json."
        )
    try:
        if source.kind is Kind.GGUF:
            return gguf.read_tokenizer(Path(source.path))
        local = source.cached or source.kind is not Kind.HUB
        return AutoTokenizer.from_pretrained(
            source.path, local_files_only=local, trust_remote_code=False
        )
    except LudusError:
        raise
    except Exception as error:
        raise ConfigError(
            why(source.name, "tokenizer", error, unreached=source.unreached)
        ) from None
