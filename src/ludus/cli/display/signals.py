"""Long work on an event loop, and what Ctrl-C means to it: once cleanly, twice at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from ludus.cli.display.collect_display import CollectDisplay
from ludus.cli.display.formatting import plural
from ludus.rollout.callbacks import CollectProgress

if TYPE_CHECKING:
    from ludus.rollout.collector import Collector
    from ludus.rollout.progress import PhaseProgress

Result = TypeVar("Result")

INTERRUPTED = "interrupted"
TERMINATED = "terminated"
EXIT_CODES = {INTERRUPTED: 130, TERMINATED: 143}


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run it on the fastest loop that is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


class InterruptHandler(CollectProgress):
    """Passes everything on to a display, and turns signals into a clean end.

    Before the first episode Ctrl-C is what it always is.
    """

    def __init__(self, display: CollectDisplay, on_checked: Callable[[], None]) -> None:
        self._display = display
        self._on_checked = on_checked
        self._collector: Collector | None = None
        self._signal_count = 0

    def phase(self, progress: PhaseProgress) -> None:
        self._display.phase(progress)

    def checked(self) -> None:
        self._on_checked()

    def begin(self, collector: Collector) -> None:
        self._collector = collector
        self._display.begin(collector)

    def warn(self, words: str) -> None:
        self._display.warn(words)

    def __enter__(self) -> InterruptHandler:
        self._loop = asyncio.get_running_loop()
        self._previous_handlers = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal_count += 1
        if self._collector is None and number == signal.SIGTERM:
            raise SystemExit(EXIT_CODES[TERMINATED])
        if self._collector is None or self._signal_count > 2:
            raise KeyboardInterrupt
        if number == signal.SIGTERM:
            self._loop.call_soon_threadsafe(self._collector.abort, TERMINATED)
        elif self._signal_count == 1:
            self._loop.call_soon_threadsafe(self._drain, self._collector)
        else:
            self._loop.call_soon_threadsafe(self._collector.abort, INTERRUPTED)

    def _drain(self, collector: Collector) -> None:
        collector.drain(INTERRUPTED)
        under_way = collector.stats.active
        if under_way:
            self.warn(f"Finishing {plural(under_way, 'episode')}; Ctrl-C again stops at once.")
