"""Settings of the whole process that are others while somebody decodes or trains."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Meanwhile(Generic[Value]):
    """Another value while anybody is in here, and what it was before when nobody is."""

    def __init__(
        self,
        read: Callable[[], Value],
        write: Callable[[Value], None],
        other: Callable[[Value], Value],
    ) -> None:
        self._read, self._write, self._other = read, write, other
        self._lock = threading.Lock()
        self._inside: int = 0
        self._usual: Value

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._usual = self._read()
                self._write(self._other(self._usual))
            self._inside += 1

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._write(self._usual)


QUICK = 0.0005
"""Seconds after which a thread that waits gets Python's lock. The usual 5 ms are more than several
steps of a fast decoder, and one thread decodes while another converses."""
taking_turns = Meanwhile(
    sys.getswitchinterval, sys.setswitchinterval, lambda usual: min(usual, QUICK)
)


def _plans() -> bool:
    from torch.backends.cuda import cudnn_sdp_enabled

    return bool(cudnn_sdp_enabled())


def _plan(plans: bool) -> None:
    from torch.backends.cuda import enable_cudnn_sdp

    enable_cudnn_sdp(plans)


changing_shapes = Meanwhile(_plans, _plan, lambda usual: False)
"""Attention without cuDNN's kernels, which torch prefers on newer GPUs: they are planned anew for
each shape, and where every step has its own, that takes longer than the step itself."""
