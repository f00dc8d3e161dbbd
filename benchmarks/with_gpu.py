"""What the benchmarks that need a GPU say where there is none."""

from __future__ import annotations

import sys


def need_gpu(otherwise: str = "") -> None:
    """End with a line on a machine without one; `otherwise` is what can be done there."""
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"This is measured on a GPU, and torch sees none here. {otherwise}".rstrip())
