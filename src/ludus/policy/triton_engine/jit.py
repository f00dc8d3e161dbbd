"""The decorator that compiles a function into a Triton kernel. Import it only where Triton is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton


def jit_kernel(function: Callable[..., Any]) -> Any:
    """Compile at the first launch; launched as `function[grid](...)`.

    `M`, the number of rows, changes all the time: without `do_not_specialize` Triton would compile
    another kernel for M = 1 and for multiples of 16.
    """
    return triton.jit(function, do_not_specialize=["M"])
