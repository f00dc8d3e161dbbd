"""Process-wide settings that are changed while a model decodes or trains, and then restored."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass
class ScopedSetting(Generic[Value]):
    """A reentrant context manager that overrides a global value.

    Threads may enter at the same time: the first one sets the value and the last one restores it. A
    plain save-and-restore would let one restore the value that another had already overridden.
    """

    read: Callable[[], Value]
    write: Callable[[Value], None]
    override: Callable[[Value], Value]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _depth: int = 0
    _original: Value = field(init=False)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._depth:
                self._original = self.read()
                self.write(self.override(self._original))
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if not self._depth:
                    self.write(self._original)


SWITCH_INTERVAL_S = 0.0001
"""How long a thread may hold the GIL while another waits for it. Python's default of 5 ms is longer
than several steps of a fast decoder, whose thread would wait for the event loop's."""
short_switch_interval = ScopedSetting(
    sys.getswitchinterval, sys.setswitchinterval, lambda original: min(original, SWITCH_INTERVAL_S)
)


without_cudnn_sdpa = ScopedSetting[bool](
    lambda: import_module("torch.backends.cuda").cudnn_sdp_enabled(),
    lambda enabled: import_module("torch.backends.cuda").enable_cudnn_sdp(enabled),
    lambda original: False,
)
"""Attention without cuDNN's kernels, which torch prefers on newer GPUs. They build a plan for every
new shape; with another shape in every step, that takes longer than the step."""
