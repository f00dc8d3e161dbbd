"""Task files: the server to start, what a model is asked to do with its tools, and the score."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import shlex
import shutil
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ludus.data.json_files import numbered_lines, read_text
from ludus.data.tool_schema import JsonObject
from ludus.environment.faults import log_fault
from ludus.environment.source_file import SourceFile
from ludus.errors import (
    ConfigError,
    EnvironmentNotFound,
    ExecutionFailed,
    WireError,
    describe_exception,
    did_you_mean,
)


class ServerConfig(BaseModel):
    """The table `[server]` of a task file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_timeout: float = Field(default=60.0, gt=0)
    """Seconds for one call of a tool."""
    start_timeout: float = Field(default=60.0, gt=0)
    """Seconds for starting the server and listing its tools."""
    restart: bool = True
    """Whether every episode gets a new server, or a new session over HTTP. False is faster, for
    servers that keep no state between calls."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the server; `$NAME` is replaced by a variable of this process."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers; `$NAME` is replaced likewise."""


@dataclass(frozen=True)
class Server:
    """A server: a command to start, or a URL."""

    config: ServerConfig
    command: tuple[str, ...] = ()
    url: str | None = None


def build_mcp_server(target: str, config: ServerConfig) -> Server:
    """Build the MCP server of a task file from a command line or an HTTP URL."""
    config = config.model_copy(
        update={
            "env": {name: _substitute(value) for name, value in config.env.items()},
            "headers": {name: _substitute(value) for name, value in config.headers.items()},
        }
    )
    if target.startswith(("http://", "https://")):
        if not urlsplit(target).hostname:
            raise ConfigError(f"mcp+{target} names no host. Write mcp+http://HOST/PATH.")
        if "@" in urlsplit(target).netloc:
            raise ConfigError(
                "A URL must not contain a user name or a password, because it is recorded. "
                "Use `headers` in the task file."
            )
        return Server(config, url=target)
    try:
        command = tuple(shlex.split(target))
    except ValueError as error:
        raise ConfigError(f"mcp:{target} is not a command: {error}.") from None
    if not command:
        raise ConfigError("Name the MCP server: mcp:COMMAND#TASKS, such as mcp:my-server#t.jsonl.")
    if shutil.which(command[0], path=config.env.get("PATH")) is None:
        raise ConfigError(
            f"The command {command[0]!r} was not found. Install the MCP server, or check PATH."
        )
    return Server(config, command=command)


def _substitute(value: str) -> str:
    try:
        return Template(value).substitute(os.environ)
    except KeyError as error:
        raise ConfigError(f"The task file uses ${error.args[0]}, which is not set.") from None
    except ValueError:
        raise ConfigError(f"{value!r} has a $ without a name; write $$ for a dollar.") from None


Answer = str | int | float | bool
Expected = Answer | list[Answer]


class Task(BaseModel):
    """One task. Other fields than these are kept, for the check to read."""

    model_config = ConfigDict(extra="allow", frozen=True)

    prompt: str
    expected: Expected | None = None
    """The right answer, or a list of right answers."""
    check: str | None = None
    """The function that scores an answer: `file.py:function`, from the folder of the file."""

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


def load_task_file(path: Path) -> TaskFile:
    """Load a task file, .jsonl, .json or .toml; raises `ConfigError`."""
    line_numbers: list[int] = []
    try:
        match path.suffix:
            case ".jsonl":
                tasks = []
                for number, line in numbered_lines(path):
                    line_numbers.append(number)
                    try:
                        tasks.append(json.loads(line))
                    except json.JSONDecodeError as error:
                        # The decoder's own message would always name line 1.
                        place = f"line {number}, column {error.colno}"
                        raise ValueError(f"{place}: {error.msg}") from None
                data: object = {"tasks": tasks}
            case ".toml":
                data = tomllib.loads(read_text(path))
            case ".json":
                data = json.loads(read_text(path))
                data = {"tasks": data} if isinstance(data, list) else data
            case _:
                raise ConfigError(f"The task file {path} must end in .jsonl, .json or .toml.")
    except OSError as error:
        raise ConfigError(f"The task file {path} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise ConfigError(f"{path} cannot be parsed: it is nested too deeply.") from None
    except ValueError as error:
        raise ConfigError(f"{path} cannot be parsed: {error}.") from None
    try:
        return TaskFile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}{_explain_first_error(error, line_numbers)}") from None


def _explain_first_error(error: ValidationError, line_numbers: Sequence[int]) -> str:
    """Which task and field is wrong, and how; to be put after the name of the file."""
    first = error.errors(include_url=False, include_input=False)[0]
    names, message, place = first["loc"], first["msg"].removeprefix("Value error, "), ""
    if names[:1] == ("tasks",) and len(names) > 1:
        index, names = int(names[1]), names[2:]
        # In .json and .toml files a task has several lines: the tasks are counted, from 1.
        place = f", line {line_numbers[index]}" if line_numbers else f", task {index + 1}"
    field = ".".join(map(str, names))
    if field.startswith("expected."):
        # The first error of a union names only one of its types.
        field, message = "expected", "must be a string, a number, a boolean or a list of these"
    elif first["type"] == "extra_forbidden":
        known = [*TaskFile.model_fields, *(f"server.{name}" for name in ServerConfig.model_fields)]
        hint = did_you_mean(field, known, f"Known: {', '.join(known)}")
        message = f"unknown field. {hint}"
    subject = f"{field}: " if field else ""
    return f"{place}: {subject}{message[:1].lower()}{message[1:]}."


Check = Callable[["Attempt"], object]


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
    """Return the reward of an attempt at a task."""
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
    """Whether an answer to a task is the expected one, or one of several.

    Numbers are compared as numbers; text without regard to case and blanks.
    """
    match expected:
        case list():
            return any(is_correct(answer, each) for each in expected)
        case bool() | str():
            return _normalize(answer) == _normalize(str(expected))
    try:
        return math.isclose(float(answer.replace(",", "")), expected, rel_tol=1e-6)
    except ValueError:
        return False


def _normalize(text: str) -> str:
    return " ".join(text.split()).casefold()


def load_check(name: str, folder: Path) -> Check:
    """Load the function `file.py:function`, relative to `folder`, that checks answers to tasks."""
    source = SourceFile.parse(name)
    if source is None:
        raise ConfigError(f"The check {name!r} must be file.py:function.")
    try:
        check: Check = replace(source, path=folder / source.path).load()
    except (EnvironmentNotFound, ImportError) as error:
        raise ConfigError(f"The check {name!r} cannot be loaded: {error}") from None
    if not callable(check):
        raise ConfigError(f"The check {name!r} is not a function.")
    return check
