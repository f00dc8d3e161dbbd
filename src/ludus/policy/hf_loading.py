"""The loaders of transformers: their packages, and without log output and progress bars."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from ludus.errors import MissingExtra


def require_transformers(purpose: str, *modules: str) -> None:
    """Raise `MissingExtra` unless transformers and these modules can be imported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for module in ("transformers", *modules):
                importlib.import_module(module)
    except ImportError:
        raise MissingExtra.of("train", purpose) from None


@contextmanager
def suppress_hf_logging() -> Iterator[None]:
    """Silence warnings, logs and progress bars of transformers and huggingface_hub."""
    hf = importlib.import_module("transformers.utils.logging")
    bars = importlib.import_module("huggingface_hub.utils")
    hub = logging.getLogger("huggingface_hub")
    hf_verbosity, hub_level = hf.get_verbosity(), hub.level
    # Both switches are restored: the one of transformers also sets the one of huggingface_hub.
    hf_enabled, hub_enabled = hf.is_progress_bar_enabled(), not bars.are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hf.set_verbosity(logging.CRITICAL)
        hub.setLevel(logging.CRITICAL)
        hf.disable_progress_bar()
        bars.disable_progress_bars()
        try:
            yield
        finally:
            if hf_enabled:
                hf.enable_progress_bar()
            (bars.enable_progress_bars if hub_enabled else bars.disable_progress_bars)()
            hf.set_verbosity(hf_verbosity)
            hub.setLevel(hub_level)
