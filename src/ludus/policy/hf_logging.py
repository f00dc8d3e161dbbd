"""The loaders of transformers without log output and progress bars."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def suppress_hf_logging() -> Iterator[None]:
    """Silence warnings, logs and progress bars of transformers and huggingface_hub."""
    hf: Any = importlib.import_module("transformers.utils.logging")
    hub = logging.getLogger("huggingface_hub")
    hf_verbosity, hub_level = hf.get_verbosity(), hub.level
    with warnings.catch_warnings(), _suppress_progress_bars(hf):
        warnings.simplefilter("ignore")
        hf.set_verbosity(logging.CRITICAL)
        hub.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            hf.set_verbosity(hf_verbosity)
            hub.setLevel(hub_level)


@contextmanager
def _suppress_progress_bars(hf: Any) -> Iterator[None]:
    """Save and restore both switches: that of transformers also sets that of huggingface_hub."""
    hub: Any = importlib.import_module("huggingface_hub.utils")
    hf_enabled, hub_enabled = hf.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    hf.disable_progress_bar()
    hub.disable_progress_bars()
    try:
        yield
    finally:
        if hf_enabled:
            hf.enable_progress_bar()
        (hub.enable_progress_bars if hub_enabled else hub.disable_progress_bars)()
