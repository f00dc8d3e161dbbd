"""CUDA graphs: run work once, capture it, and then replay it with a single launch.

A decoding step is some hundred small kernels, and launching them one by one takes longer than
running them. The work must only read and write fixed addresses.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ludus.policy.engine.scoped_settings import ScopedSetting

if TYPE_CHECKING:
    from torch import Tensor
    from torch.cuda import CUDAGraph, Stream

LONG_LAUNCH_STEPS, SHORT_LAUNCH_STEPS = 8, 2
"""Decoding steps that are captured as one graph."""
Work = Callable[[], "Tensor | None"]
"""Decoding steps return nothing, a forward pass the logits."""
gc_disabled = ScopedSetting(
    gc.isenabled, lambda on: gc.enable() if on else gc.disable(), lambda usual: False
)
"""Disable garbage collection during a capture: destroying another graph can invalidate it."""


class NoGraphRunner:
    """Stands in for `CudaGraphRunner` on a CPU: runs the work each time."""

    def run(self, key: Hashable, work: Work) -> Tensor | None:
        return work()

    def clear(self) -> None:
        """Do nothing: there are no graphs."""


class CudaGraphRunner:
    """CUDA graphs, by the key that they were captured for.

    Work whose graph cannot be captured, because memory is short, is launched kernel by kernel.
    """

    def __init__(self) -> None:
        self._graphs: dict[Hashable, tuple[CUDAGraph, Tensor | None]] = {}
        self._not_captured: set[Hashable] = set()
        self._pool: tuple[int, int] | None = None
        self._capture_stream: Stream | None = None

    def run(self, key: Hashable, work: Work) -> Tensor | None:
        """Run or replay the work. The next run of any work overwrites the returned tensors."""
        if key in self._graphs:
            graph, output = self._graphs[key]
            graph.replay()
            return output
        # Eagerly first: kernels are compiled at their first launch, which a capture does not allow.
        output = work()
        if key not in self._not_captured:
            graph = self._capture(work)
            if graph is None:
                self._not_captured.add(key)
            else:
                self._graphs[key] = graph
        return output

    def clear(self) -> None:
        """Drop all graphs, because the memory that they use is about to be freed."""
        self._graphs.clear()
        self._not_captured.clear()
        self._pool = None

    def _capture(self, work: Work) -> tuple[CUDAGraph, Tensor | None] | None:
        """Capture the work; None if memory is short."""
        import torch

        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        if self._capture_stream is None:
            # One stream for all graphs: the pool reuses memory only on the stream that had it.
            self._capture_stream = torch.cuda.Stream()
        current = torch.cuda.current_stream()
        self._capture_stream.wait_stream(current)
        graph = None
        with torch.cuda.stream(self._capture_stream), gc_disabled():
            try:
                graph = self._capture_once(work)
            except torch.OutOfMemoryError:
                # During a capture torch cannot return its unused cached blocks, so do it before.
                torch.cuda.empty_cache()
                with suppress(torch.OutOfMemoryError):
                    graph = self._capture_once(work)
        current.wait_stream(self._capture_stream)
        return graph

    def _capture_once(self, work: Work) -> tuple[CUDAGraph, Tensor | None]:
        import torch

        graph = torch.cuda.CUDAGraph()
        # "thread_local": other threads may launch work meanwhile, but not synchronize the device.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            output = work()
            graph.capture_end()
        except BaseException:
            # Report the original error, not that the capture failed because of it.
            with suppress(RuntimeError):
                graph.capture_end()
            end_failed_capture(self._pool)
            if not self._graphs:
                # With its only graph the pool is released, and cannot be used again.
                self._pool = torch.cuda.graph_pool_handle()
            raise
        return graph, output


def end_failed_capture(pool: tuple[int, int] | None) -> None:
    """Restore the allocator after a failed capture of a graph.

    An error such as running out of memory invalidates a capture. Ending it raises then, before the
    allocator is told: it would go on recording into the pool, and from then on neither free cached
    memory nor begin another capture with this pool.
    """
    import torch

    # Raises if the capture had ended properly.
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)


def graph_size(number: int, sizes: Sequence[int]) -> int:
    """Return the smallest of the sizes with a graph that holds this many rows or tokens."""
    return next(size for size in sizes if size >= number)


def graph_launch_sizes(steps: int) -> Iterator[int]:
    """Split steps into launches of as few graphs as possible, with at most one superfluous step."""
    while steps > 0:
        number = LONG_LAUNCH_STEPS if steps >= LONG_LAUNCH_STEPS - 1 else SHORT_LAUNCH_STEPS
        yield number
        steps -= number
