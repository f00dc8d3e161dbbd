"""Exceptions in an environment author's code: listed once each, with --debug with traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ludus.cli.display.console import console, escape_control_chars
from ludus.environment.faults import capture_faults, report_once


@contextmanager
def record_environment_errors(*, debug: bool) -> Iterator[list[str]]:
    """Yield a list of the distinct exceptions in the block; `debug` prints tracebacks on stderr."""

    def print_traceback(text: str) -> None:
        console(stderr=True).print(escape_control_chars(text), markup=False, style="dim")

    lines: list[str] = []
    with capture_faults(report_once(lines.append)):
        if not debug:
            yield lines
            return
        with capture_faults(report_once(print_traceback, tracebacks=True)):
            yield lines
