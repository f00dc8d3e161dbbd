"""Map exceptions of an environment's code to wire errors, and log them with their location.

Clients get the exception without a location. In the author's own process the error also has file
and line, and the logger `ludus.environment` has the traceback.

`SystemExit` counts as an error too: code that a model wrote may call `sys.exit()`, which must not
end the process.
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
    """Whether the environment raised it, rather than a cancellation or a signal."""
    if isinstance(error, Exception):
        return True
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return False
    # Python runs signal handlers in the main thread, in the middle of any code.
    if threading.current_thread() is not threading.main_thread():
        return True
    if isinstance(error, KeyboardInterrupt):
        return False
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    handlers = [signal.getsignal(number) for number in _HANDLED_SIGNALS]
    return all(getattr(each, "__code__", None) is not innermost.f_code for each in handlers)


def to_wire_error(error: BaseException, cls: type) -> WireError:
    """Convert an exception of the code of `cls`; re-raises cancellations, signals, wire errors."""
    if isinstance(error, WireError) or not is_author_error(error):
        raise error
    return attach_location(ExecutionFailed(describe_exception(error)), error, cls.__module__)


def attach_location(wire_error: WireErrorT, error: BaseException, module: str) -> WireErrorT:
    """Add file and line of the author's code to a wire error, and log the traceback."""
    wire_error.author_line = log_fault(error, module)
    return wire_error


def log_fault(error: BaseException, module: str) -> str:
    """Log an exception of an author's code; returns it as one line with file and line number."""
    line = describe_with_location(error, module)
    if _log.isEnabledFor(logging.INFO):
        location = locate_exception(error, module) or line
        trace = author_traceback(error, module) or error.__traceback__
        exc_info = (type(error), error, trace)
        _log.info("%s", line, exc_info=exc_info, extra={"author_location": location})
    return line


@contextmanager
def raise_with_location() -> Iterator[None]:
    """Wire errors leave the block with file and line, for callers in the author's process."""
    try:
        yield
    except WireError as error:
        if error.author_line is None:
            raise
        located = type(error)(error.author_line, error.code, error.details)
        raise located from error.__cause__


class FaultHandler(logging.Handler):
    """Reports each error of an author's code once; errors at the same line count as the same.

    With `tracebacks`, the whole traceback is reported.
    """

    def __init__(self, report: Callable[[str], None], *, tracebacks: bool = False) -> None:
        super().__init__(logging.INFO)
        self._report = report
        self._tracebacks = tracebacks
        self._reported: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        location = getattr(record, "author_location", record.getMessage())
        if location in self._reported:
            return
        self._reported.add(location)
        if self._tracebacks and record.exc_info:
            self._report("".join(traceback.format_exception(*record.exc_info)).rstrip())
        else:
            self._report(record.getMessage())


@contextmanager
def capture_faults(handler: FaultHandler) -> Iterator[None]:
    """Within the block, the handler gets every exception of an author's code."""
    level = _log.level
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)


def log_faults_to_stderr() -> None:
    """Write errors of environments to stderr from now on, each once, as a server does."""
    _log.addHandler(FaultHandler(lambda line: print(line, file=sys.stderr, flush=True)))
    _log.setLevel(logging.INFO)


def describe_exception(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
