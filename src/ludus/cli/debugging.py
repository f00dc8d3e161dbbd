"""Exceptions in an author's code, as commands show them: once each, with --debug the traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ludus.cli.console import console, harmless
from ludus.environment.faults import FaultHandler, capture_faults


@contextmanager
def environment_faults(*, debug: bool) -> Iterator[list[str]]:
    """The distinct faults that happen in the block; with `debug` tracebacks go to stderr."""
    lines: list[str] = []
    with capture_faults(FaultHandler(lines.append)):
        if not debug:
            yield lines
            return
        with capture_faults(FaultHandler(_print_traceback, tracebacks=True)):
            yield lines


def _print_traceback(text: str) -> None:
    console(stderr=True).print(harmless(text), markup=False, style="dim")
