"""The decorator that makes a kernel of a function. Only ever import this where Triton is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton


def jit_kernel(function: Callable[..., Any]) -> Any:
    """Compiled by Triton when it is launched first, and launched as `function[grid](...)`."""
    # How many rows there are changes all the time, and must not make another kernel each time.
    return triton.jit(function, do_not_specialize=["rows"])
