"""What comes out of an author's code: whose doing it is, and what is said of it.

Strangers on the wire get the exception alone. The author, in this process, gets file and line too;
the logger `ludus.environment` has the traceback.

Code that a model wrote calls `sys.exit()` as readily as anything else. That is the fault of one
call, and nobody's wish to end the process.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ludus.environment.error_location import (
    author_traceback,
    describe_with_location,
    locate_exception,
)
from ludus.errors import ExecutionFailed, WireError

WireErrorT = TypeVar("WireErrorT", bound=WireError)

_HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_log = logging.getLogger("ludus.environment")


def is_author_error(error: BaseException) -> bool:
    """Whether the code raised it, and not somebody who cancels the call or ends the process."""
    if isinstance(error, Exception):
        return True
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return False
    # Signals are heard in the main thread, whatever code it is in just then.
    if threading.current_thread() is not threading.main_thread():
        return True
    return not isinstance(error, KeyboardInterrupt) and not _is_from_signal_handler(error)


def to_wire_error(error: BaseException, cls: type) -> WireError:
    """What the code of `cls` raised, as the wire's error; what it did not raise goes on its way."""
    if isinstance(error, WireError) or not is_author_error(error):
        raise error
    return attach_location(ExecutionFailed(describe_exception(error)), error, cls.__module__)


def attach_location(wire_error: WireErrorT, error: BaseException, module: str) -> WireErrorT:
    """Add file and line of the author's code to an error of the wire, and log the traceback."""
    wire_error.author_line = log_fault(error, module)
    return wire_error


def log_fault(error: BaseException, module: str) -> str:
    """Log what an author's code raised; returns it as one line with file and line number."""
    line = describe_with_location(error, module)
    if _log.isEnabledFor(logging.INFO):
        place = locate_exception(error, module) or line
        trace = author_traceback(error, module) or error.__traceback__
        exc_info = (type(error), error, trace)
        _log.info("%s", line, exc_info=exc_info, extra={"author_location": place})
    return line


@contextmanager
def raise_with_location() -> Iterator[None]:
    """Errors of the wire leave the block with file and line: who called is in this process."""
    try:
        yield
    except WireError as error:
        if error.author_line is None:
            raise
        told = type(error)(error.author_line, error.code, error.details)
        raise told from error.__cause__


class FaultHandler(logging.Handler):
    """Passes each fault of an author's code on once, however often it happens.

    Faults at the same line are the same. With `tracebacks` the whole traceback is passed on.
    """

    def __init__(self, report: Callable[[str], None], *, tracebacks: bool = False) -> None:
        super().__init__(logging.INFO)
        self._report = report
        self._tracebacks = tracebacks
        self._reported: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        place = getattr(record, "author_location", record.getMessage())
        if place in self._reported:
            return
        self._reported.add(place)
        if self._tracebacks and record.exc_info:
            self._report("".join(traceback.format_exception(*record.exc_info)).rstrip())
        else:
            self._report(record.getMessage())


@contextmanager
def capture_faults(handler: FaultHandler) -> Iterator[None]:
    """While it lasts, the handler hears of every exception in an author's code."""
    level = _log.level
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)


def log_faults_to_stderr() -> None:
    """From now on write faults of authors' code to stderr, each once: what a server does.

    Clients get the exception without file and line.
    """
    _log.addHandler(FaultHandler(lambda line: print(line, file=sys.stderr, flush=True)))
    _log.setLevel(logging.INFO)


def describe_exception(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _is_from_signal_handler(error: BaseException) -> bool:
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    handlers = [signal.getsignal(number) for number in _HANDLED_SIGNALS]
    return any(getattr(each, "__code__", None) is innermost.f_code for each in handlers)
