"""Map exceptions of an environment's code, and invalid arguments, to errors that can be sent.

Clients get the exception without a location. In the author's own process the error also has file
and line, and `fault_log` has the traceback.

`SystemExit` counts as an error too: code that a model wrote may call `sys.exit()`, which must not
end the process.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import traceback

from pydantic import ValidationError

from ludus.environment.fault_log import log_fault
from ludus.errors import ExecutionFailed, WireError, describe_exception, did_you_mean

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
    """Convert an exception of the code of `cls`; re-raises cancellations, signals, wire errors."""
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
