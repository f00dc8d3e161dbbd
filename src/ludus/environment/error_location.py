"""Locate an exception in an author's code, and describe it in one line.

my_env.py:17 in guess: ZeroDivisionError: division by zero
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from ludus.errors import describe_in_one_line


def describe_with_location(error: BaseException, module: str) -> str:
    """The exception in one line, after the location of the innermost frame of the author's code.

    `module` is the module of the author's class; its whole top-level package is the author's.
    """
    location = locate_exception(error, module)
    line = describe_in_one_line(error)
    return f"{location}: {line}" if location else line


def locate_exception(error: BaseException, module: str) -> str | None:
    """`my_env.py:17 in guess`, or None where no frame is the author's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_display_path(error.filename, module)}:{error.lineno}"
    location = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if _is_author_frame(frame, module):
            function = frame.f_code.co_name
            location = f"{_display_path(frame.f_code.co_filename, _frame_module(frame))}:{line}"
            if function != "<module>":
                location += f" in {function}"
    return location


def author_traceback(error: BaseException, module: str) -> TracebackType | None:
    """The traceback from the first frame of the author's code on, without those of the runner."""
    trace = error.__traceback__
    while trace is not None and not _is_author_frame(trace.tb_frame, module):
        trace = trace.tb_next
    return trace


def locate_function(function: Callable[..., Any]) -> str:
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
