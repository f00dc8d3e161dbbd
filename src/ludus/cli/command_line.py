"""The command line as it was typed, for cards and training records."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageRun:
    """A stage that `ludus run` is running."""

    arguments: Sequence[str]
    """Its command line, without `ludus`."""
    only_checks: bool
    """Whether the command ends once its options are checked."""


_stage: ContextVar[StageRun | None] = ContextVar("stage", default=None)


@contextmanager
def replace_typed_command(arguments: Sequence[str], *, only_checks: bool = False) -> Iterator[None]:
    """Use this command line in place of the typed one within the block."""
    token = _stage.set(StageRun(arguments, only_checks))
    try:
        yield
    finally:
        _stage.reset(token)


def end_if_checking() -> None:
    """End the command, if only its options are to be checked. Call it before any work."""
    if (stage := _stage.get()) is not None and stage.only_checks:
        raise SystemExit(0)


def is_stage() -> bool:
    """Whether `ludus run` is running this command as a stage of a recipe."""
    return _stage.get() is not None


def typed_command() -> str:
    """The command line without --token, which is a secret."""
    stage = _stage.get()
    return join_command(sys.argv[1:] if stage is None else stage.arguments)


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
