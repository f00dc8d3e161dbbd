"""Settings of the whole process that are others while somebody decodes or trains."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Value = TypeVar("Value")


class ScopedSetting(Generic[Value]):
    """Another value while anybody is in here, and what it was before when nobody is."""

    def __init__(
        self,
        read: Callable[[], Value],
        write: Callable[[Value], None],
        override: Callable[[Value], Value],
    ) -> None:
        self._read, self._write, self._override = read, write, override
        self._lock = threading.Lock()
        self._depth: int = 0
        self._original: Value

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            if not self._depth:
                self._original = self._read()
                self._write(self._override(self._original))
            self._depth += 1

    def _leave(self) -> None:
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._write(self._original)


SWITCH_INTERVAL_S = 0.0005
"""Seconds after which a thread that waits gets Python's lock. The usual 5 ms are more than several
steps of a fast decoder, and one thread decodes while another converses."""
short_switch_interval = ScopedSetting(
    sys.getswitchinterval, sys.setswitchinterval, lambda usual: min(usual, SWITCH_INTERVAL_S)
)


def _cudnn_sdp_enabled() -> bool:
    from torch.backends.cuda import cudnn_sdp_enabled

    return bool(cudnn_sdp_enabled())


def _enable_cudnn_sdp(plans: bool) -> None:
    from torch.backends.cuda import enable_cudnn_sdp

    enable_cudnn_sdp(plans)


without_cudnn_sdpa = ScopedSetting(_cudnn_sdp_enabled, _enable_cudnn_sdp, lambda usual: False)
"""Attention without cuDNN's kernels, which torch prefers on newer GPUs: they are planned anew for
each shape, and where every step has its own, that takes longer than the step itself."""
