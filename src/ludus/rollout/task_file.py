"""Read tasks from a JSONL file: each line is an object with the arguments of `reset`.

Rows of NeMo Gym's data sets are read too. Their task fields are next to the request; the prompt in
the request is not used, because the environment's reset renders its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.data.jsonl import numbered_lines
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError

_REQUEST_FIELD = "responses_create_params"
_NON_TASK_FIELDS = (_REQUEST_FIELD, "agent_ref")


def read_tasks(path: Path) -> tuple[JsonObject, ...]:
    """The tasks of a JSONL file, in order. Empty lines are skipped."""
    if not path.is_file():
        raise ConfigError(f"The task file {path} does not exist.")
    tasks = tuple(_parse_task(line, f"{path}:{number}") for number, line in numbered_lines(path))
    if not tasks:
        raise ConfigError(
            f"{path} holds no tasks. Write a JSON object of reset arguments per line."
        )
    return tasks


def check_seed(task: Mapping[str, Any], where: str) -> None:
    """Raise where the seed of a task is not an integer; `where` names the task."""
    seed = task.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ConfigError(f"{where}: the seed must be an integer, got {seed!r}.")


def _parse_task(line: bytes, where: str) -> JsonObject:
    try:
        fields = from_json(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{where} is not a JSON object of reset arguments.")
    check_seed(fields, where)
    if _REQUEST_FIELD not in fields:
        return fields
    task = {
        name: value
        for name, value in fields.items()
        if name not in _NON_TASK_FIELDS and not name.startswith("_ng_")
    }
    if not task:
        raise ConfigError(
            f"{where} has a prompt and no reset arguments: it does not say which task to play."
        )
    return task
