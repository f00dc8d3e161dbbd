"""Score a submitted answer: against an expected value, or with a function of the author's."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ludus.data.tool_schema import JsonObject
from ludus.environment.fault_log import log_fault
from ludus.environment.source_file import SourceFile
from ludus.envs.mcp.task_file import Answer, Expected, Task
from ludus.errors import (
    ConfigError,
    EnvironmentNotFound,
    ExecutionFailed,
    WireError,
    describe_exception,
    did_you_mean,
)

Check = Callable[["Attempt"], Any]


@dataclass(frozen=True, slots=True)
class PastCall:
    """One call that the model made."""

    name: str
    arguments: JsonObject
    text: str
    """The text of the result."""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a check gets: the answer and how the model arrived at it."""

    answer: str
    task: Task
    """The task; `attempt.task.NAME` is any field that the file has."""
    call: Callable[..., Awaitable[str]]
    """`await attempt.call("read_file", path="a.txt")` asks the server, for an async check."""
    calls: tuple[PastCall, ...] = field(default=())


async def score_attempt(attempt: Attempt, check: Check | None) -> float:
    """The reward of an answer."""
    if check is None:
        assert attempt.task.expected is not None
        return float(is_correct(attempt.answer, attempt.task.expected))
    try:
        if inspect.iscoroutinefunction(check):
            score = await check(attempt)
        else:
            score = await asyncio.to_thread(check, attempt)
    except WireError:  # The server broke while the check asked it.
        raise
    except Exception as error:
        failure = ExecutionFailed(f"{attempt.task.check} failed: {describe_exception(error)}")
        failure.author_line = log_fault(error, getattr(check, "__module__", ""))
        raise failure from error
    if not isinstance(score, bool | int | float) or not math.isfinite(score):
        raise ExecutionFailed(
            f"{attempt.task.check} returned {score!r}, which is not a finite number."
        )
    return float(score)


def is_correct(answer: str, expected: Expected) -> bool:
    """Whether an answer is the expected one, or one of several.

    Numbers are compared as numbers; text without regard to case and blanks.
    """
    if isinstance(expected, list):
        return any(is_correct(answer, each) for each in expected)
    return _equals(answer, expected)


def _equals(answer: str, expected: Answer) -> bool:
    if isinstance(expected, bool):
        return answer.strip().casefold() == str(expected).casefold()
    if isinstance(expected, str):
        return _normalize(answer) == _normalize(expected)
    try:
        return math.isclose(float(answer.replace(",", "")), expected, rel_tol=1e-6)
    except ValueError:
        return False


def _normalize(text: str) -> str:
    return " ".join(text.split()).casefold()


def load_check(name: str, folder: Path) -> Check:
    """The function `file.py:function`, relative to `folder`, or `module:function`."""
    try:
        check: object
        if (source := SourceFile.parse(name)) is not None:
            check = replace(source, path=folder / source.path).load()
        else:
            check = _import_function(name, folder)
    except (EnvironmentNotFound, ImportError) as error:
        raise ConfigError(f"The check {name!r} cannot be loaded: {error}") from None
    if not callable(check):
        raise ConfigError(f"The check {name!r} is not a function.")
    return check


def _import_function(name: str, folder: Path) -> Any:
    module_name, _, attribute = name.partition(":")
    if not attribute:
        raise ConfigError(f"The check {name!r} must be file.py:function or module:function.")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    module = importlib.import_module(module_name)
    try:
        return getattr(module, attribute)
    except AttributeError:
        hint = did_you_mean(attribute, vars(module))
        raise ConfigError(f"Module {module_name!r} has no {attribute!r}. {hint}".strip()) from None
