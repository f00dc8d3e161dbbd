"""Near copies, left out: of tasks by their prompts, of attempts by what the model said.

Which one stays does not depend on luck: of tasks the one that was read first, of attempts the one
with the highest reward, then the shorter, then the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from pydantic import ValidationError

from ludus.curation.catalog import Catalog
from ludus.curation.filters import BEST_FIRST
from ludus.curation.minhash import MinHashIndex, shingles
from ludus.curation.task_prompts import SimilarTasks, TaskPrompts
from ludus.data.episode import Episode
from ludus.data.messages import Message


def exclude_near_prompts(catalog: Catalog, threshold: float) -> None:
    """Tasks whose prompt is a near copy of an earlier task's go, with all their attempts."""
    catalog.create_table("copies", {"task": "VARCHAR"}, _near_duplicate_tasks(catalog, threshold))
    catalog.exclude(
        "near-prompt",
        "task IN (SELECT task FROM copies)",
        detail=f"the prompt is {threshold:g} like an earlier task's",
    )


def exclude_near_completions(
    catalog: Catalog, threshold: float, *, across_tasks: bool = False
) -> None:
    """Attempts that say nearly what a better one said: at the same task, or at any."""
    found = _near_duplicate_attempts(catalog, threshold, across_tasks)
    catalog.create_table("copies", {"row": "BIGINT"}, found)
    scope = "any" if across_tasks else "the same"
    catalog.exclude(
        "near-completion",
        "rowid IN (SELECT row FROM copies)",
        detail=f"what was said is {threshold:g} like a better attempt's at {scope} task",
    )


def completion_text(messages: Iterable[Message]) -> str:
    """All that is the model's own: its thoughts, its words, its calls."""
    pieces = []
    for message in messages:
        if message.role == "assistant":
            pieces += [message.reasoning_content or "", message.text]
            for call in message.tool_calls or ():
                pieces += [call.function.name, call.function.arguments]
    return "\n".join(pieces)


def _line_completion_text(line: bytes) -> str:
    """Nothing where a line is no episode after all, which shows when a row is made of it."""
    try:
        return completion_text(Episode.from_line(line).messages)
    except ValidationError:
        return ""


def _near_duplicate_tasks(catalog: Catalog, threshold: float) -> Iterator[tuple[str]]:
    kept = SimilarTasks(threshold)
    for task in TaskPrompts(catalog):
        if kept.find_similar(task):
            yield (task.name,)
        else:
            kept.add(task)


def _near_duplicate_attempts(
    catalog: Catalog, threshold: float, across_tasks: bool
) -> Iterator[tuple[int]]:
    first = "" if across_tasks else "task, "
    rows = catalog.stream(
        f"SELECT task, rowid FROM episodes WHERE reason IS NULL ORDER BY {first}{BEST_FIRST}"
    )
    for _, attempts in groupby(rows, key=lambda row: None if across_tasks else row[0]):
        near = MinHashIndex(threshold)
        for _, row in attempts:
            if not (pieces := shingles(_line_completion_text(catalog.read_line(row)))):
                continue
            if near.find_similar(pieces):
                yield (row,)
            else:
                near.add(pieces)
