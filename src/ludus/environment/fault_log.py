"""The log of exceptions in an author's code, and handlers that report each of them once.

The logger `ludus.environment` has them with their tracebacks.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ludus.environment.error_location import (
    author_traceback,
    describe_with_location,
    locate_exception,
)

_log = logging.getLogger("ludus.environment")


def log_fault(error: BaseException, module: str) -> str:
    """Log an exception of an author's code; returns it as one line with file and line number."""
    line = describe_with_location(error, module)
    if _log.isEnabledFor(logging.INFO):
        location = locate_exception(error, module) or line
        trace = author_traceback(error, module) or error.__traceback__
        exc_info = (type(error), error, trace)
        _log.info("%s", line, exc_info=exc_info, extra={"author_location": location})
    return line


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
        self._report((self._tracebacks and _format_traceback(record)) or record.getMessage())


class LoggedFault(NamedTuple):
    """A fault that another process has logged."""

    line: str
    location: str
    traceback: str


class FaultRecorder(logging.Handler):
    """Keeps the faults of a process, until another process takes them to log them there."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._faults: list[LoggedFault] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        location = getattr(record, "author_location", line)
        self._faults.append(LoggedFault(line, location, _format_traceback(record)))

    def take(self) -> list[LoggedFault]:
        faults, self._faults = self._faults, []
        return faults


def log_recorded_fault(fault: LoggedFault) -> None:
    """Log a fault of another process, as if it had occurred in this one."""
    extra = {"author_location": fault.location, "author_traceback": fault.traceback}
    _log.info("%s", fault.line, extra=extra)


def _format_traceback(record: logging.LogRecord) -> str:
    if record.exc_info:
        return "".join(traceback.format_exception(*record.exc_info)).rstrip()
    return getattr(record, "author_traceback", "")


@contextmanager
def capture_faults(handler: logging.Handler) -> Iterator[None]:
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
