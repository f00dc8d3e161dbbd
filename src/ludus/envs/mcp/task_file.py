"""Task files: what a model is asked to do with the tools of a server, and how that is scored."""

from __future__ import annotations

import json
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ludus.data.jsonl import numbered_lines
from ludus.environment.error_mapping import explain_validation_error
from ludus.envs.mcp.server import ServerConfig
from ludus.errors import ConfigError

Answer = str | int | float | bool
Expected = Answer | list[Answer]


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
            raise ValueError("a task needs either `expected` or `check`")
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
    try:
        match path.suffix:
            case ".jsonl":
                data: Any = {"tasks": [json.loads(line) for _, line in numbered_lines(path)]}
            case ".toml":
                data = tomllib.loads(path.read_text())
            case ".json":
                data = json.loads(path.read_text())
                data = {"tasks": data} if isinstance(data, list) else data
            case _:
                raise ConfigError(f"The task file {path} must end in .jsonl, .json or .toml.")
    except ValueError as error:
        raise ConfigError(f"{path} cannot be parsed: {error}.") from None
    try:
        return TaskFile.model_validate(data)
    except ValidationError as error:
        known = list(TaskFile.model_fields)
        raise ConfigError(f"{path}: {explain_validation_error(error, known)}.") from None
