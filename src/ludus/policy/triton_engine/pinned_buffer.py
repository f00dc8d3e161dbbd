"""Numbers on their way to the device and back, through memory that the device reaches by itself.

Copies from anywhere else are waited for, with everything that was launched before them.
"""

from __future__ import annotations

from typing import Any


class PinnedBuffer:
    """An array of whole numbers here, and its like on the device."""

    def __init__(self, length: int, device: Any) -> None:
        import torch

        here = torch.zeros(length, dtype=torch.int64)
        apart = torch.device(device).type == "cuda"
        self._host_tensor = here.pin_memory() if apart else here
        self._copy_done = torch.cuda.Event() if apart else None
        self.device_tensor = here.to(device, copy=True)
        self.host_array: Any = self._host_tensor.numpy()

    def wait(self) -> None:
        """Until what was sent is there: before that, it must not be written over."""
        if self._copy_done is not None:
            self._copy_done.synchronize()

    def upload(self, begin: int, end: int) -> None:
        self.device_tensor[begin:end].copy_(self._host_tensor[begin:end], non_blocking=True)
        self._record_copy()

    def download(self, begin: int, end: int) -> None:
        """Here as it is there, once all that was launched before has been done."""
        self._host_tensor[begin:end].copy_(self.device_tensor[begin:end], non_blocking=True)
        self._record_copy()
        self.wait()

    def _record_copy(self) -> None:
        if self._copy_done is not None:
            self._copy_done.record()
