"""Tasks from a file: each line is a JSON object with the arguments of reset.

Rows of NeMo Gym's data sets are read too. There the task's fields stand beside the request; the
prompt in the request is not used, because an environment asks its question itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.data.episode_reader import numbered_lines
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError

_REQUEST_FIELD = "responses_create_params"
_NON_TASK_FIELDS = (_REQUEST_FIELD, "agent_ref")


def read_tasks(path: Path) -> tuple[JsonObject, ...]:
    """The tasks of a JSONL file, in its order. Empty lines are passed over."""
    if not path.is_file():
        raise ConfigError(f"There is no file of tasks {path}.")
    tasks = tuple(_parse_task(line, f"{path}:{number}") for number, line in numbered_lines(path))
    if not tasks:
        raise ConfigError(f"{path} holds no tasks: write a JSON object of reset arguments a line.")
    return tasks


def check_seed(task: Mapping[str, Any], where: str) -> None:
    seed = task.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ConfigError(f"{where}: a seed is a whole number, not {seed!r}.")


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
