"""Task files: what a model is asked to do with the tools of a server, and how that is scored."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ludus.data.jsonl import numbered_lines
from ludus.envs.mcp.server import ServerConfig
from ludus.errors import ConfigError, did_you_mean

Answer = str | int | float | bool
Expected = Answer | list[Answer]

_MESSAGES = {"missing": "is missing", "model_type": "must be an object", "too_short": "is empty"}
"""Shorter messages for some of pydantic's errors, by type."""


class Task(BaseModel):
    """One task. Other fields than these are kept, for the check to read."""

    model_config = ConfigDict(extra="allow", frozen=True)

    prompt: str
    expected: Expected | None = None
    """The right answer, or a list of right answers."""
    check: str | None = None
    """The function that scores an answer: `file.py:function` or `module:function`."""

    @model_validator(mode="after")
    def _is_scored(self) -> Task:
        if (self.expected is None) == (self.check is None):
            raise ValueError("a task needs either `expected` or `check`, and not both")
        return self


class TaskFile(BaseModel):
    """A task file, in its long form."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: list[Task] = Field(min_length=1)
    server: ServerConfig = ServerConfig()
    check: str | None = None
    """The check of tasks that have neither `expected` nor a check of their own."""

    @model_validator(mode="before")
    @classmethod
    def _apply_check(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("check") is None:
            return data
        tasks = [
            {**task, "check": data["check"]}
            if isinstance(task, dict) and not task.keys() & {"expected", "check"}
            else task
            for task in data.get("tasks") or ()
        ]
        return {**data, "tasks": tasks}


def load_task_file(path: Path) -> TaskFile:
    """Load a .jsonl, .json or .toml file; raises `ConfigError`."""
    try:
        changed_at = path.stat().st_mtime_ns
    except OSError as error:
        raise ConfigError(f"The task file {path} cannot be read: {error.strerror}.") from None
    return _load(path.absolute(), changed_at)


@lru_cache(maxsize=64)
def _load(path: Path, changed_at: int) -> TaskFile:
    # Every session has an environment of its own; they share the parsed file until it changes.
    line_numbers: list[int] = []
    try:
        match path.suffix:
            case ".jsonl":
                data: Any = {"tasks": []}
                for number, line in numbered_lines(path):
                    line_numbers.append(number)
                    data["tasks"].append(_parse_line(line, number))
            case ".toml":
                data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
            case ".json":
                data = json.loads(path.read_text(encoding="utf-8-sig"))
                data = {"tasks": data} if isinstance(data, list) else data
            case _:
                raise ConfigError(f"The task file {path} must end in .jsonl, .json or .toml.")
    except RecursionError:
        raise ConfigError(f"{path} cannot be parsed: it is nested too deeply.") from None
    except ValueError as error:
        raise ConfigError(f"{path} cannot be parsed: {error}.") from None
    try:
        return TaskFile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}{_explain_first_error(error, line_numbers)}") from None


def _parse_line(line: bytes, number: int) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        # The decoder's own message would always name line 1.
        raise ValueError(f"line {number}, column {error.colno}: {error.msg}") from None


def _explain_first_error(error: ValidationError, line_numbers: Sequence[int]) -> str:
    """Which task and field is wrong, and how; to be put after the name of the file."""
    first = error.errors(include_url=False, include_input=False)[0]
    names, message = first["loc"], first["msg"].removeprefix("Value error, ")
    place = ""
    if names[:1] == ("tasks",) and len(names) > 1:
        index, names = int(names[1]), names[2:]
        # In .json and .toml files a task has several lines: the tasks are counted, from 1.
        place = f", line {line_numbers[index]}" if line_numbers else f", task {index + 1}"
    field = ".".join(map(str, names))
    hint = ""
    if field.startswith("expected."):
        # The first error of a union names only one of its types.
        field, message = "expected", "must be a string, a number, a boolean or a list of these"
    elif first["type"] == "extra_forbidden":
        known = [*TaskFile.model_fields, *(f"server.{name}" for name in ServerConfig.model_fields)]
        message, hint = "unknown field", did_you_mean(field, known, f"Known: {', '.join(known)}.")
    elif first["type"] in _MESSAGES:
        message = _MESSAGES[first["type"]]
    subject = f"{field}: " if field else ""
    return f"{place}: {subject}{message[:1].lower()}{message[1:]}. {hint}".rstrip()
