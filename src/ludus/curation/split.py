"""Split into train and test without a common task.

A task and its near duplicates are a family, and a family is never divided. Which tasks are drawn
for the test split is decided by a hash of their names, not by their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor

from ludus.curation.catalog import Catalog
from ludus.curation.dedupe import count_duplicate_tasks
from ludus.curation.similarity import SimilarTasks, TaskPrompt, TaskPrompts
from ludus.data.files import stable_hash
from ludus.errors import ConfigError, RunError

TRAIN, TEST = "train", "test"
DEFAULT_SIMILARITY = 0.8
"""Prompts that are at least this similar are near duplicates."""


@dataclass(frozen=True, slots=True)
class SplitByTask:
    """How the tasks were split."""

    near_copies: int = 0
    """Tasks that follow a near duplicate into its split."""
    test_target: int | None = None
    """Tasks that `test_size` asks for; with near duplicates there may be no split with as many."""


def split_by_task(
    catalog: Catalog, *, test_size: float, similarity: float = DEFAULT_SIMILARITY, seed: int = 0
) -> SplitByTask:
    """Assign a split to every kept episode, with at least one family in each."""
    names, families = _find_families(TaskPrompts(catalog), similarity)
    _check_splittable(catalog, names, families)
    target = min(max(1, floor(test_size * len(names) + 0.5)), len(names) - 1)
    test_families = _draw_test_families(names, families, target, seed)
    rows = (
        (name, family, TEST if family in test_families else TRAIN)
        for name, family in zip(names, families, strict=True)
    )
    catalog.create_table(
        "splits", {"task": "VARCHAR", "family": "INTEGER", "split": "VARCHAR"}, rows
    )
    catalog.sql(
        "UPDATE episodes SET split = splits.split FROM splits "
        "WHERE episodes.task = splits.task AND reason IS NULL"
    )
    # A cheap check of the one property that must hold.
    divided = catalog.sql(
        """SELECT count(*) FROM (
            SELECT family FROM episodes JOIN splits USING (task) WHERE reason IS NULL
            GROUP BY family HAVING count(DISTINCT episodes.split) > 1
        )"""
    )[0][0]
    if divided:
        raise RunError(f"{divided} tasks are in both splits. This is a bug in Ludus.")
    return SplitByTask(len(names) - len(set(families)), target)


def _find_families(tasks: Iterable[TaskPrompt], similarity: float) -> tuple[list[str], list[int]]:
    """Return the names of all tasks, and for each the number of the first task of its family.

    A union-find structure with path halving.
    """
    seen = SimilarTasks(similarity)
    names: list[str] = []
    parents: list[int] = []

    def find_root(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    for number, task in enumerate(tasks):
        names.append(task.name)
        parents.append(number)
        for other in seen.find_similar(task):
            first, second = sorted((find_root(number), find_root(other)))
            parents[second] = first
        seen.add(task, number)
    return names, [find_root(number) for number in range(len(names))]


def _draw_test_families(names: list[str], families: list[int], target: int, seed: int) -> set[int]:
    """Draw families with `target` tasks together, or fewer if none fits into what is left.

    A family is drawn by the lowest hash of its tasks. If all are larger than the target, the first
    of the smallest is drawn, but never all families.
    """
    draws: dict[int, int] = {}
    for name, family in zip(names, families, strict=True):
        draw = stable_hash(f"{seed}/{name}")
        draws[family] = min(draw, draws.get(family, draw))
    sizes = Counter(families)
    ordered = sorted(draws, key=lambda family: draws[family])
    drawn, left = set[int](), target
    for family in ordered:
        if sizes[family] <= left:
            drawn.add(family)
            left -= sizes[family]
    return drawn or {min(ordered, key=lambda family: sizes[family])}


def _check_splittable(catalog: Catalog, names: list[str], families: list[int]) -> None:
    if len(set(families)) > 1:
        return
    if len(names) > 1:
        problem = f"all {len(names)} tasks are near duplicates of each other"
        advice = "Do not set `test_size`, or raise `similarity_threshold`."
    else:
        problem = f"a split needs two tasks, got {len(names)}"
        advice = "Do not set `test_size`."
    if copies := count_duplicate_tasks(catalog):
        problem += f"; the episodes of {copies:,} more are exact duplicates"
        advice = "Use `dedupe=False` to keep those, or do not set `test_size`."
    raise ConfigError(f"Cannot split: {problem}. {advice}")
