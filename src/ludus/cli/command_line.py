"""The command line as it was typed, for cards and training records."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_stage_arguments: ContextVar[Sequence[str] | None] = ContextVar("stage_arguments", default=None)
"""The command line of a stage that `ludus run` is running."""


_checking: ContextVar[bool] = ContextVar("checking", default=False)
"""Whether commands end once their options are checked."""


@contextmanager
def check_only() -> Iterator[None]:
    """Let commands check their options and end there; `end_if_checking` is where."""
    token = _checking.set(True)
    try:
        yield
    finally:
        _checking.reset(token)


def end_if_checking() -> None:
    """End the command, if only its options are to be checked. Call it before any work."""
    if _checking.get():
        raise SystemExit(0)


@contextmanager
def stage_arguments(arguments: Sequence[str]) -> Iterator[None]:
    """Take this command line for the typed one: that of a stage, which `ludus run` runs."""
    token = _stage_arguments.set(arguments)
    try:
        yield
    finally:
        _stage_arguments.reset(token)


def is_stage() -> bool:
    """Whether `ludus run` is running this command as a stage of a recipe."""
    return _stage_arguments.get() is not None


def typed_command() -> str:
    """The command line without --token, which is a secret."""
    return join_command(_stage_arguments.get() or sys.argv[1:])


def join_command(arguments: Sequence[str]) -> str:
    """A command of Ludus as it is typed, without --token."""
    remaining = iter(arguments)
    words = ["ludus"]
    for argument in remaining:
        if argument == "--token":
            next(remaining, None)
        elif not argument.startswith("--token="):
            words.append(argument)
    return shlex.join(words)
