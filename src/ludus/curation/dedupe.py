"""Exclude duplicates, near duplicates of tasks and completions, and the tasks of held-out sets.

Of similar tasks the first in the files is kept; of similar attempts the one with the highest
reward, then the shortest, then the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from ludus.curation.catalog import Catalog
from ludus.curation.filters import BEST_FIRST, exclude_by_window
from ludus.curation.similarity import MinHashIndex, SimilarTasks, TaskPrompts, shingles
from ludus.data.episode import Episode
from ludus.data.json_files import numbered_lines
from ludus.data.messages import completion_text, prompt_text
from ludus.errors import ConfigError, RunError

DUPLICATE = "duplicate"
DUPLICATE_PAIR = "duplicate pair"


def exclude_duplicates(catalog: Catalog, *, within_tasks: bool = False) -> None:
    """Keep the best of episodes with the same messages and tools: of all, or within each task."""
    task = "task, " if within_tasks else ""
    exclude_by_window(
        catalog,
        DUPLICATE,
        f"row_number() OVER (PARTITION BY {task}prompt, completion, tools ORDER BY {BEST_FIRST})"
        " > 1",
        detail="the same messages and tools" + (" at the same task" if within_tasks else ""),
    )


def count_duplicate_tasks(catalog: Catalog) -> int:
    """Count the tasks that have no episode left because of duplicates of other tasks."""
    rows = catalog.sql(
        """SELECT count(DISTINCT task) FROM episodes WHERE reason IN (?, ?)
            AND task NOT IN (SELECT task FROM episodes WHERE reason IS NULL)""",
        DUPLICATE,
        DUPLICATE_PAIR,
    )
    return int(rows[0][0])


def exclude_near_prompts(catalog: Catalog, threshold: float) -> None:
    """Exclude all attempts at tasks whose prompt is similar to an earlier task's."""
    originals = SimilarTasks(threshold)
    copies = []
    for task in TaskPrompts(catalog):
        if originals.find_similar(task):
            copies.append((task.name,))
        else:
            originals.add(task)
    catalog.create_table("copies", {"task": "VARCHAR"}, copies)
    catalog.exclude(
        "near-prompt",
        "task IN (SELECT task FROM copies)",
        detail=f"the prompt is at least {threshold:g} similar to an earlier task's",
    )


def exclude_near_completions(
    catalog: Catalog, threshold: float, *, across_tasks: bool = False
) -> None:
    """Exclude attempts whose completion is similar to a better one's."""
    order = BEST_FIRST if across_tasks else f"task, {BEST_FIRST}"
    rows = catalog.stream(f"SELECT task, rowid FROM episodes WHERE reason IS NULL ORDER BY {order}")
    copies = []
    for _, attempts in groupby(rows, key=lambda row: None if across_tasks else row[0]):
        originals = MinHashIndex(threshold)
        for _, row in attempts:
            try:
                messages = Episode.from_line(catalog.read_line(row)).messages
            except ValidationError:
                continue  # It is excluded as unreadable when rows are written.
            completion = shingles(completion_text(messages))
            if not completion:
                continue
            if originals.find_similar(completion):
                copies.append((row,))
            else:
                originals.add(completion)
    catalog.create_table("copies", {"row": "BIGINT"}, copies)
    scope = "any" if across_tasks else "the same"
    catalog.exclude(
        "near-completion",
        "rowid IN (SELECT row FROM copies)",
        detail=f"at least {threshold:g} similar to a better attempt at {scope} task",
    )


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
