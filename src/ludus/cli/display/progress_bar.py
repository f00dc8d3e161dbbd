"""Work whose steps have names: a bar where somebody watches, and an orderly end when it is stopped.

The bar is for terminals only: elsewhere only the result counts.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ProgressCallback = Callable[[str, int, int | None], None]


@contextmanager
def progress_bar() -> Iterator[ProgressCallback]:
    """Yield what is to be told: the step, how much of it is done, and how much there is."""
    with _raise_on_signal() as stop_if_told, _live_bar() as show:

        def watch(what: str, done: int, total: int | None) -> None:
            stop_if_told()
            show(what, done, total)

        yield watch


@contextmanager
def _live_bar() -> Iterator[ProgressCallback]:
    from ludus.cli.display.console import console

    err = console(stderr=True)
    if not err.is_terminal or err.is_dumb_terminal:
        yield lambda what, done, total: None
        return

    from ludus.cli.display.status import LiveStatus, PhaseView
    from ludus.rollout.progress import PhaseProgress

    with LiveStatus() as status:
        progress: PhaseProgress | None = None

        def show(what: str, done: int, total: int | None) -> None:
            nonlocal progress
            if progress is None or progress.phase != what:
                progress = PhaseProgress(what, total)
                status.show(PhaseView(progress))
            progress.total = total
            progress.advance(done - progress.done)

        yield show


@contextmanager
def _raise_on_signal() -> Iterator[Callable[[], None]]:
    """SIGTERM ends the work as Ctrl-C does: with an exception, so that no draft is left behind.

    Libraries that are written in C turn what a signal raised into an error of their own, which may
    even be caught. So that is put right here, and whoever calls what is yielded is stopped as well.
    """
    told: list[BaseException] = []

    def hear(number: int, frame: FrameType | None) -> None:
        told.append(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(143))
        raise told[-1]

    def stop_if_told() -> None:
        if told:
            raise told[-1]

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A job in the background is told by its shell to ignore interrupts, and goes on doing so.
    heard = {number: was for number, was in before.items() if was is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, hear)
    try:
        yield stop_if_told
    except Exception:
        stop_if_told()
        raise
    finally:
        for number, was in heard.items():
            signal.signal(number, was)
