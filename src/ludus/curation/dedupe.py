"""Exclude near duplicates: tasks with similar prompts, and attempts with similar completions.

Of similar tasks the first in the files is kept; of similar attempts the one with the highest
reward, then the shortest, then the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from pydantic import ValidationError

from ludus.curation.catalog import Catalog
from ludus.curation.filters import BEST_FIRST
from ludus.curation.minhash import MinHashIndex, shingles
from ludus.curation.task_prompts import SimilarTasks, TaskPrompts
from ludus.data.episode import Episode
from ludus.data.messages import Message


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


def completion_text(messages: Iterable[Message]) -> str:
    """Return everything that the model wrote: reasoning, text and calls."""
    texts = []
    for message in messages:
        if message.role == "assistant":
            texts += [message.reasoning_content or "", message.text]
            for call in message.tool_calls or ():
                texts += [call.function.name, call.function.arguments]
    return "\n".join(texts)
