"""Where in an author's code an exception was raised, in one line.

my_env.py:17 in guess: ZeroDivisionError: division by zero
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

MAX_MESSAGE_CHARS = 500
"""Characters of an exception's own message that are kept."""


def describe_with_location(error: BaseException, module: str) -> str:
    """The exception in one line, with the innermost line of the author's code before it.

    `module` is the module of the author's class: its whole top-level package is the author's.
    """
    location = locate_exception(error, module)
    words = format_exception_line(error)
    return f"{location}: {words}" if location else words


def format_exception_line(error: BaseException) -> str:
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    words = " ".join(message.split())
    if len(words) > MAX_MESSAGE_CHARS:
        words = f"{words[:MAX_MESSAGE_CHARS]} …"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def locate_exception(error: BaseException, module: str) -> str | None:
    """`my_env.py:17 in guess`, or None where none of the author's code was running."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_display_path(error.filename, module)}:{error.lineno}"
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if _is_author_frame(frame, module):
            found = _format_frame(frame.f_code, _frame_module(frame), line)
    return found


def author_traceback(error: BaseException, module: str) -> TracebackType | None:
    """The traceback from where the author's code was entered, without the frames of the runner."""
    trace = error.__traceback__
    while trace is not None and not _is_author_frame(trace.tb_frame, module):
        trace = trace.tb_next
    return trace


def function_location(function: Callable[..., Any]) -> str:
    """Where a function is defined: `my_env.py:17`; its name where that is not known."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    if code is None:
        return str(getattr(function, "__qualname__", repr(function)))
    return f"{_display_path(code.co_filename, function.__module__)}:{code.co_firstlineno}"


def _is_author_frame(frame: FrameType, module: str) -> bool:
    return f"{_frame_module(frame)}.".startswith(f"{_author_package(module)}.")


def _frame_module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _author_package(module: str) -> str:
    """The package that is the author's: not all of Ludus where the environment ships with it."""
    top, _, rest = module.partition(".")
    return f"{top}.{rest.partition('.')[0]}" if top == "ludus" and rest else top


def _format_frame(code: CodeType, module: str, line: int) -> str:
    place = f"{_display_path(code.co_filename, module)}:{line}"
    return place if code.co_name == "<module>" else f"{place} in {code.co_name}"


def _display_path(file: str, module: str) -> str:
    """The path from the current folder, or from the package's: never one with a home folder."""
    path = Path(file)
    installed = Path(sys.prefix)
    if path.is_relative_to(Path.cwd()) and not path.is_relative_to(installed):
        return str(path.relative_to(Path.cwd()))
    depth = module.count(".") + (2 if path.name == "__init__.py" else 1)
    return str(Path(*path.parts[-depth:]))
