"""Exits a benchmark that needs a GPU on a machine without one."""

from __future__ import annotations

import sys


def require_gpu(alternative: str = "") -> None:
    """Exit if torch sees no GPU; `alternative` says what can be run instead."""
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"This benchmark needs a GPU, and torch sees none. {alternative}".rstrip())
