"""SIGINT and SIGTERM: the one handler for all commands, and the exit codes of a stopped run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

RequestStop = Callable[[str, int], bool]
"""Called with the stop reason and the number of signals so far; False: stop at once instead."""

INTERRUPTED = "interrupted"
TERMINATED = "terminated"
EXIT_CODES = {INTERRUPTED: 130, TERMINATED: 143}
_STOP_REASONS = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


@contextmanager
def handle_signals(
    request_stop: RequestStop = lambda reason, count: False,
) -> Iterator[Callable[[], None]]:
    """Pass signals to `request_stop`, or raise KeyboardInterrupt or SystemExit if it declines.

    `request_stop` runs between any two instructions of the main thread: it must neither print nor
    take a lock, which the interrupted code may hold.

    Yields a function that raises the exception of a signal once more. C extensions (DuckDB,
    pyarrow) turn an exception that a signal handler raised into their own error, or swallow
    it. So long loops call that function, and an error that leaves the block after a signal is
    replaced by the signal's exception.
    """
    pending: BaseException | None = None
    count = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal pending, count
        count += 1
        reason = _STOP_REASONS[signal.Signals(number)]
        if request_stop(reason, count):
            return
        # A second signal asks for the shortest way out, whichever it is.
        at_once = number == signal.SIGINT or count > 1
        pending = KeyboardInterrupt() if at_once else SystemExit(EXIT_CODES[reason])
        raise pending

    def raise_pending() -> None:
        if pending is not None:
            raise pending

    previous = {number: signal.getsignal(number) for number in _STOP_REASONS}
    # A shell makes its background jobs ignore SIGINT; they go on ignoring it.
    replaced = {number: old for number, old in previous.items() if old is not signal.SIG_IGN}
    for number in replaced:
        signal.signal(number, on_signal)
    try:
        yield raise_pending
    except Exception:
        raise_pending()
        raise
    finally:
        for number, old in replaced.items():
            signal.signal(number, old)


def exit_if_signalled(stop_reason: str | None) -> None:
    """Exit with the code of the signal that stopped a run; return if none did."""
    if stop_reason in EXIT_CODES:
        raise SystemExit(EXIT_CODES[stop_reason])
