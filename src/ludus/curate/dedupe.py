"""Near copies, left out: of tasks by their prompts, of attempts by what the model said.

Which one stays does not depend on luck: of tasks the one that was read first, of attempts the one
with the highest reward, then the shorter, then the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from pydantic_core import from_json

from ludus.curate.catalog import Catalog
from ludus.curate.near import NearCopies, shingles
from ludus.curate.select import BETTER
from ludus.curate.tasks import Tasks, words


def leave_out_near_prompts(catalog: Catalog, threshold: float) -> None:
    """Tasks whose prompt is a near copy of an earlier task's go, with all their attempts."""
    catalog.table("copies", {"task": "VARCHAR"}, _repeated_tasks(catalog, threshold))
    catalog.leave_out(
        "near-prompt",
        "task IN (SELECT task FROM copies)",
        detail=f"the prompt is {threshold:g} like an earlier task's",
    )


def leave_out_near_completions(
    catalog: Catalog, threshold: float, *, across_tasks: bool = False
) -> None:
    """Attempts that say nearly what a better one said: at the same task, or at any."""
    found = _repeated_attempts(catalog, threshold, across_tasks)
    catalog.table("copies", {"row": "BIGINT"}, found)
    scope = "any" if across_tasks else "the same"
    catalog.leave_out(
        "near-completion",
        "rowid IN (SELECT row FROM copies)",
        detail=f"what was said is {threshold:g} like a better attempt's at {scope} task",
    )


def said(messages: list[Mapping[str, Any]]) -> str:
    """All that is the model's own: its thoughts, its words, its calls."""
    pieces = []
    for message in messages:
        if message.get("role") == "assistant":
            pieces += [message.get("reasoning_content") or "", words(message.get("content"))]
            for call in message.get("tool_calls") or ():
                pieces += [call["function"]["name"], call["function"]["arguments"]]
    return "\n".join(pieces)


def _repeated_tasks(catalog: Catalog, threshold: float) -> Iterator[tuple[str]]:
    near = NearCopies(threshold)
    for task in Tasks(catalog):
        if not task.pieces:
            continue
        if near.like(task.pieces):
            yield (task.name,)
        else:
            near.add(task.pieces)


def _repeated_attempts(
    catalog: Catalog, threshold: float, across_tasks: bool
) -> Iterator[tuple[int]]:
    first = "" if across_tasks else "task, "
    rows = catalog.stream(
        f"SELECT task, rowid FROM episodes WHERE reason IS NULL ORDER BY {first}{BETTER}"
    )
    for _, attempts in groupby(rows, key=lambda row: None if across_tasks else row[0]):
        near = NearCopies(threshold)
        for _, row in attempts:
            pieces = shingles(said(from_json(catalog.line(row))["messages"]))
            if near.like(pieces):
                yield (row,)
            else:
                near.add(pieces)
