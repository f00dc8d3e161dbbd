"""Numbers on their way to the device and back, through memory that the device reaches by itself.

Copies from anywhere else are waited for, with everything that was launched before them.
"""

from __future__ import annotations

from typing import Any


class Passage:
    """An array of whole numbers here, and its like on the device."""

    def __init__(self, length: int, device: Any) -> None:
        import torch

        here = torch.zeros(length, dtype=torch.int64)
        apart = torch.device(device).type == "cuda"
        self._here = here.pin_memory() if apart else here
        self._done = torch.cuda.Event() if apart else None
        self.there = here.to(device, copy=True)
        self.array: Any = self._here.numpy()

    def wait(self) -> None:
        """Until what was sent is there: before that, it must not be written over."""
        if self._done is not None:
            self._done.synchronize()

    def send(self, begin: int, end: int) -> None:
        self.there[begin:end].copy_(self._here[begin:end], non_blocking=True)
        self._mark()

    def fetch(self, begin: int, end: int) -> None:
        """Here as it is there, once all that was launched before has been done."""
        self._here[begin:end].copy_(self.there[begin:end], non_blocking=True)
        self._mark()
        self.wait()

    def _mark(self) -> None:
        if self._done is not None:
            self._done.record()
