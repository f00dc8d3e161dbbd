"""Work that is launched once, recorded, and from then on replayed with a single call.

A step is some hundred small kernels; to launch them one by one takes longer than to run them. What
the work is, and that it only reads and writes fixed places, is its owner's business.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

Work = Callable[[], Any]


class Eager:
    """Where nothing can be recorded: the work is done each time."""

    def run(self, key: Hashable, work: Work) -> Any:
        return work()

    def forget(self) -> None: ...


class Graphs:
    """CUDA graphs, by what they were recorded for."""

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[Any, Any]] = {}
        self._pool: Any = None

    def run(self, key: Hashable, work: Work) -> Any:
        """Do the work; what it returns is overwritten when any work is done again."""
        if key in self._made:
            graph, made = self._made[key]
            graph.replay()
            return made
        # Done once the plain way: kernels are compiled then, which a recording does not bear.
        made = work()
        self._made[key] = self._recorded(work)
        return made

    def forget(self) -> None:
        """What was recorded reads places that are no more."""
        self._made.clear()
        self._pool = None

    def _recorded(self, work: Work) -> tuple[Any, Any]:
        import torch

        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph, now = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        aside = torch.cuda.Stream()
        aside.wait_stream(now)
        with torch.cuda.stream(aside):
            # Other threads may use the GPU meanwhile; only this one must keep to what it records.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                made = work()
            finally:
                graph.capture_end()
        now.wait_stream(aside)
        return graph, made
