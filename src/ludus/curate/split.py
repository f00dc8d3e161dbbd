"""Two sides that share no task: one to train on, one to test on.

A task and its near copies are a family, and a family stays together. The side of a family is a
hash of its name: with more episodes tomorrow, the tasks that are there today stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic_core import from_json

from ludus.curate.catalog import Catalog
from ludus.curate.near import NearCopies
from ludus.curate.tasks import Task, Tasks, question
from ludus.data.episode import digest_of
from ludus.data.lines import numbered
from ludus.errors import BadSetting, RunError

TRAIN, TEST = "train", "test"
LIKENESS = 0.8
"""From here on a prompt is a near copy of another."""
_FILES = ("episodes.jsonl", "test.jsonl", "train.jsonl")


def split(catalog: Catalog, *, test: float, likeness: float = LIKENESS, seed: int = 0) -> int:
    """Give every kept episode its side, and return how many tasks went along with a near copy.

    At least one family is on each side, however small the part that is asked for.
    """
    names, families = _families(Tasks(catalog), likeness)
    chosen = _drawn(names, families, test, seed)
    rows = (
        (name, family, TEST if family in chosen else TRAIN)
        for name, family in zip(names, families, strict=True)
    )
    catalog.table("sides", {"task": "VARCHAR", "family": "INTEGER", "side": "VARCHAR"}, rows)
    catalog.sql(
        "UPDATE episodes SET side = sides.side FROM sides "
        "WHERE episodes.task = sides.task AND reason IS NULL"
    )
    _check(catalog)
    return len(names) - len(set(families))


def leave_out_held_out(catalog: Catalog, sources: Iterable[Path], likeness: float) -> None:
    """Leave out the tasks of a held-out set and near copies of their prompts."""
    tasks = Tasks(catalog)
    near = NearCopies(likeness)
    held_out: set[str] = set()
    for source in sources:
        for name, environment, text in _prompts(source):
            if name is not None:
                held_out.add(name)
            if pieces := tasks.telling(text, environment):
                near.add(pieces)
    leaked = (
        (task.name,)
        for task in tasks
        if task.name in held_out or (task.pieces and near.like(task.pieces))
    )
    catalog.table("leaked", {"task": "VARCHAR"}, leaked)
    catalog.leave_out(
        "held-out",
        "task IN (SELECT task FROM leaked)",
        detail="the task, or a near copy of its prompt, is in the held-out set",
    )


def _families(tasks: Iterable[Task], likeness: float) -> tuple[list[str], list[int]]:
    """The names of all tasks, and for each the number of the first task of its family."""
    near = NearCopies(likeness)
    names: list[str] = []
    parents: list[int] = []
    added: list[int] = []

    def head(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    for number, task in enumerate(tasks):
        names.append(task.name)
        parents.append(number)
        if task.pieces:
            for other in near.add(task.pieces):
                first, second = sorted((head(number), head(added[other])))
                parents[second] = first
            added.append(number)
    return names, [head(number) for number in range(len(names))]


def _drawn(names: list[str], families: list[int], test: float, seed: int) -> set[int]:
    """The families of the test side. A family is called by the least of its tasks' names."""
    if not 0 < test < 1:
        raise BadSetting(f"--test {test} is not between 0 and 1: the part of the tasks to test on.")
    called: dict[int, str] = {}
    for name, family in zip(names, families, strict=True):
        called[family] = min(name, called.get(family, name))
    if len(called) < 2:
        raise BadSetting(
            f"There is nothing to split: {len(names)} tasks are left, and all are near copies of "
            "each other. Leave out --test, or raise --likeness."
            if len(names) > 1
            else f"{len(names)} task is left, and a split needs two. Leave out --test."
        )
    draws = {family: digest_of(f"{seed}/{name}") / 2**64 for family, name in called.items()}
    ordered = sorted(draws, key=lambda family: draws[family])
    chosen = {family for family in ordered if draws[family] < test} or {ordered[0]}
    return chosen if len(chosen) < len(ordered) else set(ordered[:-1])


def _check(catalog: Catalog) -> None:
    """That no task and no family is on both sides: cheap, and the one thing that must not fail."""
    both = catalog.sql(
        """SELECT count(*) FROM (
            SELECT family FROM episodes JOIN sides USING (task) WHERE reason IS NULL
            GROUP BY family HAVING count(DISTINCT episodes.side) > 1
        )"""
    )[0][0]
    if both:
        raise RunError(f"{both} tasks are on both sides of the split. This is a bug in Ludus.")


def _prompts(source: Path) -> Iterator[tuple[str | None, str | None, str]]:
    """Task, environment and question of each row of a run, a curated set or any JSONL of rows."""
    files = [source / name for name in _FILES] if source.is_dir() else [source]
    found = [file for file in files if file.is_file()]
    if not found:
        raise BadSetting(
            f"--held-out {source} is neither a file nor a folder with one of {', '.join(_FILES)}."
        )
    for number, line in numbered(found[0]):
        try:
            row = from_json(line)
            messages = row["prompt"] if "prompt" in row else row["messages"]
            text = messages if isinstance(messages, str) else question(messages)
            yield row.get("group_id"), row.get("environment"), text
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{found[0]}:{number} has neither messages nor a prompt.") from None
