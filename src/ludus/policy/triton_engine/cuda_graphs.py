"""Work that is launched once, recorded, and from then on replayed with a single call.

A step is some hundred small kernels; to launch them one by one takes longer than to run them. What
the work is, and that it only reads and writes fixed places, is its owner's business.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any

from ludus.policy.engine.scoped_settings import ScopedSetting

Work = Callable[[], Any]
gc_disabled = ScopedSetting(
    gc.isenabled, lambda on: gc.enable() if on else gc.disable(), lambda usual: False
)
"""A graph that goes away while another is being recorded can spoil it."""


class EagerRunner:
    """Where nothing can be recorded: the work is done each time."""

    def run(self, key: Hashable, work: Work) -> Any:
        return work()

    def clear(self) -> None: ...


class CudaGraphRunner:
    """CUDA graphs, by what they were recorded for."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, tuple[Any, Any]] = {}
        self._pool: Any = None
        self._capture_stream: Any = None

    def run(self, key: Hashable, work: Work) -> Any:
        """Do the work; what it returns is overwritten when any work is done again."""
        if key in self._graphs:
            graph, made = self._graphs[key]
            graph.replay()
            return made
        # Done once the plain way: kernels are compiled then, which a recording does not bear.
        made = work()
        self._graphs[key] = self._capture(work)
        return made

    def clear(self) -> None:
        """What was recorded reads places that are no more."""
        self._graphs.clear()
        self._pool = None

    def _capture(self, work: Work) -> tuple[Any, Any]:
        import torch

        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        if self._capture_stream is None:
            # One for all: memory is lent again only to the stream that had it before.
            self._capture_stream = torch.cuda.Stream()
        now = torch.cuda.current_stream()
        self._capture_stream.wait_stream(now)
        with torch.cuda.stream(self._capture_stream), gc_disabled():
            try:
                recorded = self._capture_once(work)
            except torch.OutOfMemoryError:
                # While it records, torch gives back nothing of what it keeps unused.
                torch.cuda.empty_cache()
                recorded = self._capture_once(work)
        now.wait_stream(self._capture_stream)
        return recorded

    def _capture_once(self, work: Work) -> tuple[Any, Any]:
        import torch

        graph = torch.cuda.CUDAGraph()
        # Other threads may launch work meanwhile, if they do not wait for the whole device.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            made = work()
        except BaseException:
            # What went wrong says more than that nothing could be recorded then.
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
        return graph, made
