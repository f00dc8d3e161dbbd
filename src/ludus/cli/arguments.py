"""Arguments of tasks, as commands take them: JSON objects."""

from __future__ import annotations

import json
from typing import Any

import typer


def json_object(text: str | None, option: str) -> dict[str, Any]:
    """What an option says in JSON; nothing where it was not given."""
    try:
        value = json.loads(text) if text is not None else {}
    except ValueError as error:
        raise typer.BadParameter(f"{option} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{option} wants a JSON object.")
    return value


def task_arguments(task: str | None, dataset_config: str | None) -> dict[str, Any]:
    """The arguments of reset that --task and --dataset-config give."""
    arguments = json_object(task, "--task")
    if dataset_config is not None:
        arguments["dataset_config"] = json_object(dataset_config, "--dataset-config")
    return arguments
