"""A buffer of integers on the host and on the device, copied through pinned memory.

Copies from pageable memory would block until everything launched before them has finished.
"""

from __future__ import annotations

from typing import Any


class PinnedBuffer:
    """An int64 array on the host, and its counterpart on the device."""

    def __init__(self, length: int, device: Any) -> None:
        import torch

        host = torch.zeros(length, dtype=torch.int64)
        on_gpu = torch.device(device).type == "cuda"
        self._host_tensor = host.pin_memory() if on_gpu else host
        self._copy_done = torch.cuda.Event() if on_gpu else None
        self.device_tensor = host.to(device, copy=True)
        self.host_array: Any = self._host_tensor.numpy()

    def wait(self) -> None:
        """Wait for the last copy. Call it before writing: an upload may still be reading."""
        if self._copy_done is not None:
            self._copy_done.synchronize()

    def upload(self, begin: int, end: int) -> None:
        """Copy this range to the device, asynchronously."""
        self._copy(self._host_tensor, self.device_tensor, begin, end)

    def download(self, begin: int, end: int) -> None:
        """Copy this range to the host, after all that was launched before, and wait for it."""
        self._copy(self.device_tensor, self._host_tensor, begin, end)
        self.wait()

    def _copy(self, source: Any, target: Any, begin: int, end: int) -> None:
        target[begin:end].copy_(source[begin:end], non_blocking=True)
        if self._copy_done is not None:
            self._copy_done.record()
