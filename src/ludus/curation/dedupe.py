"""Exclude duplicates, and near duplicates: tasks with similar prompts, similar completions.

Of similar tasks the first in the files is kept; of similar attempts the one with the highest
reward, then the shortest, then the first.
"""

from __future__ import annotations

from itertools import groupby

from pydantic import ValidationError

from ludus.curation.catalog import Catalog
from ludus.curation.filters import BEST_FIRST, exclude_by_window
from ludus.curation.minhash import MinHashIndex, shingles
from ludus.curation.task_prompts import SimilarTasks, TaskPrompts
from ludus.data.episode import Episode
from ludus.data.messages import completion_text

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
    """Exclude attempts whose completion is similar to that of a better one."""
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
