"""Exclude the tasks of held-out sets, such as the test split of an earlier data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic_core import from_json

from ludus.curation.catalog import Catalog
from ludus.curation.task_prompts import SimilarTasks, TaskPrompts
from ludus.data.jsonl import numbered_lines
from ludus.data.messages import prompt_text
from ludus.errors import ConfigError, RunError

_HELD_OUT_FILES = ("episodes.jsonl", "test.jsonl", "train.jsonl")


def exclude_held_out_tasks(
    catalog: Catalog, sources: Iterable[str | Path], similarity: float
) -> None:
    """Exclude the tasks of held-out sets and tasks with near duplicates of their prompts."""
    tasks, held_out = TaskPrompts(catalog), SimilarTasks(similarity)
    names: set[str] = set()
    for source in sources:
        for name, environment, text in _read_held_out_prompts(Path(source)):
            if name is not None:
                names.add(name)
            held_out.add(tasks.build_task(name, environment, text))
    leaked = ((task.name,) for task in tasks if task.name in names or held_out.find_similar(task))
    catalog.create_table("leaked", {"task": "VARCHAR"}, leaked)
    catalog.exclude(
        "held-out",
        "task IN (SELECT task FROM leaked)",
        detail="the task, or a near duplicate of its prompt, is in the held-out set",
    )


def _read_held_out_prompts(source: Path) -> Iterator[tuple[str | None, str | None, str]]:
    """Yield task, environment and prompt of the rows of a held-out run, data set or file."""
    candidates = [source / name for name in _HELD_OUT_FILES] if source.is_dir() else [source]
    path = next((file for file in candidates if file.is_file()), None)
    if path is None:
        raise ConfigError(
            f"`held_out` must be a file or a folder with one of {', '.join(_HELD_OUT_FILES)}, "
            f"got {source}."
        )
    for number, line in numbered_lines(path):
        try:
            row = from_json(line)
            messages = row["prompt"] if "prompt" in row else row["messages"]
            text = prompt_text(messages)
            task, environment = row.get("group_id"), row.get("environment")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{path}:{number} has neither `messages` nor `prompt`.") from None
        yield task, environment, text
