"""Exceptions of an author's code: where they occurred, and the errors that are sent.

Clients get the exception without a location. In the author's own process the error also has file
and line (`my_env.py:17 in guess: ZeroDivisionError: division by zero`), and `capture_faults` has
the traceback.

`SystemExit` counts as an error too: code that a model wrote may call `sys.exit()`, which must not
end the process.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from pydantic import ValidationError

from ludus.errors import (
    ExecutionFailed,
    WireError,
    describe_exception,
    describe_in_one_line,
    did_you_mean,
)


def locate_function(function: Callable[..., object]) -> str:
    """Where a function of an author's code is (`my_env.py:17`), or its name if that is unknown."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    if code is None:
        return str(getattr(function, "__qualname__", repr(function)))
    return f"{_display_path(code.co_filename, function.__module__)}:{code.co_firstlineno}"


def _is_author_frame(frame: FrameType, module: str) -> bool:
    """Whether a frame is in the author's package; for a part of Ludus, in its subpackage."""
    top, _, rest = module.partition(".")
    package = f"{top}.{rest.partition('.')[0]}" if top == "ludus" and rest else top
    return f"{_frame_module(frame)}.".startswith(f"{package}.")


def _frame_module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _display_path(file: str, module: str) -> str:
    """The path relative to the current folder or to the package: no path of this machine."""
    path = Path(file)
    installed = Path(sys.prefix)
    if path.is_relative_to(Path.cwd()) and not path.is_relative_to(installed):
        return str(path.relative_to(Path.cwd()))
    depth = module.count(".") + (2 if path.name == "__init__.py" else 1)
    return str(Path(*path.parts[-depth:]))


class AuthorFault(NamedTuple):
    """An exception of an author's code, perhaps of another process."""

    line: str
    """The exception in one line, after its location."""
    location: str
    traceback: str
    """From the first frame of the author's code on."""


_listeners: list[Callable[[AuthorFault], None]] = []


def log_fault(error: BaseException, module: str) -> str:
    """Report an exception of an author's code; returns it as one line with file and line number.

    `module` is the module of the author's class; its whole top-level package is the author's.
    """
    location = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if _is_author_frame(frame, module):
            file = _display_path(frame.f_code.co_filename, _frame_module(frame))
            function = frame.f_code.co_name
            location = f"{file}:{number}" + (f" in {function}" if function != "<module>" else "")
    if isinstance(error, SyntaxError) and error.filename:
        location = f"{_display_path(error.filename, module)}:{error.lineno}"
    line = describe_in_one_line(error)
    if location is not None:
        line = f"{location}: {line}"
    if _listeners:
        trace = error.__traceback__
        while trace is not None and not _is_author_frame(trace.tb_frame, module):
            trace = trace.tb_next
        lines = traceback.format_exception(type(error), error, trace or error.__traceback__)
        report_fault(AuthorFault(line, location or line, "".join(lines).rstrip()))
    return line


def report_fault(fault: AuthorFault) -> None:
    """Give a fault to all `capture_faults` blocks of this process."""
    for listener in tuple(_listeners):
        listener(fault)


def report_once(
    report: Callable[[str], None], *, tracebacks: bool = False
) -> Callable[[AuthorFault], None]:
    """Return a listener that reports each fault once; faults at the same line count as the same."""
    reported: set[str] = set()

    def listen(fault: AuthorFault) -> None:
        if fault.location not in reported:
            reported.add(fault.location)
            report(fault.traceback if tracebacks else fault.line)

    return listen


@contextmanager
def capture_faults(listener: Callable[[AuthorFault], None]) -> Iterator[None]:
    """Within the block, the listener gets every exception of an author's code."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def print_faults() -> None:
    """Write errors of environments to stderr from now on, each once, as a server does."""
    _listeners.append(report_once(lambda line: print(line, file=sys.stderr, flush=True)))


_HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
    """Convert a fault in `cls` to a wire error; re-raises cancellations, signals, wire errors."""
    if isinstance(error, WireError) or not is_author_error(error):
        raise error
    failed = ExecutionFailed(describe_exception(error))
    failed.author_line = log_fault(error, cls.__module__)
    return failed


class raise_with_location:
    """Wire errors leave the block with file and line, for callers in the author's process.

    A class, because every step of a local session enters it: a generator would take longer.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, WireError) and error.author_line is not None:
            located = type(error)(error.author_line, error.code, error.details)
            located.advice = error.advice
            raise located from error.__cause__


def explain_validation_error(error: ValidationError, known: list[str], *, prefix: str = "") -> str:
    """Format a validation error in one line, for a model or a user."""
    parts = []
    for item in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            hint = did_you_mean(where, known, f"Known: {', '.join(known) or 'none'}.")
            parts.append(f"unknown argument {where!r}. {hint}")
        elif item["type"] == "missing":
            parts.append(f"argument {where!r} is missing")
        else:
            parts.append(f"argument {where!r}: {item['msg'][:1].lower()}{item['msg'][1:]}")
    return prefix + "; ".join(parts)
