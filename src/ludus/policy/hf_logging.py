"""The loaders of transformers: whether they are installed, and without their chatter.

What they load is the business of `ludus.policy.tokenizer` and `ludus.policy.load`.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ludus.errors import MissingExtra


def require(purpose: str, *modules: str) -> None:
    """Raise the install line where one of these, or transformers itself, is not there."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for module in ("transformers", *modules):
                importlib.import_module(module)
    except ImportError:
        raise MissingExtra.of("train", purpose) from None


@contextmanager
def suppress_hf_logging() -> Iterator[None]:
    """Without the loaders' warnings and bars; afterwards they may speak as before."""
    said: Any = importlib.import_module("transformers.utils.logging")
    hub = logging.getLogger("huggingface_hub")
    before, level = said.get_verbosity(), hub.level
    with warnings.catch_warnings(), _suppress_progress_bars(said):
        warnings.simplefilter("ignore")
        said.set_verbosity(logging.CRITICAL)
        hub.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            said.set_verbosity(before)
            hub.setLevel(level)


@contextmanager
def _suppress_progress_bars(said: Any) -> Iterator[None]:
    """Both libraries have bars, and transformers' switch moves the Hub's as well."""
    bars: Any = importlib.import_module("huggingface_hub.utils")
    weights, files = said.is_progress_bar_enabled(), not bars.are_progress_bars_disabled()
    said.disable_progress_bar()
    bars.disable_progress_bars()
    try:
        yield
    finally:
        if weights:
            said.enable_progress_bar()
        (bars.enable_progress_bars if files else bars.disable_progress_bars)()
