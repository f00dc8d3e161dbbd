"""Exceptions in an author's code, as commands show them: once each, with --debug the traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ludus.cli.display.console import console, escape_control_chars
from ludus.environment.error_mapping import FaultHandler, capture_faults


@contextmanager
def record_environment_errors(*, debug: bool) -> Iterator[list[str]]:
    """The distinct faults that happen in the block; with `debug` tracebacks go to stderr."""
    lines: list[str] = []
    with capture_faults(FaultHandler(lines.append)):
        if not debug:
            yield lines
            return
        with capture_faults(FaultHandler(_print_traceback, tracebacks=True)):
            yield lines


def _print_traceback(text: str) -> None:
    console(stderr=True).print(escape_control_chars(text), markup=False, style="dim")
