"""Two sides that share no task: one to train on, one to test on.

A task and its copies are a family, and a family stays together. Which tasks are drawn for the test
side is a hash of their names: with more episodes tomorrow, what is there today stays there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic_core import from_json

from ludus.curation.catalog import Catalog
from ludus.curation.filters import count_duplicate_tasks
from ludus.curation.task_prompts import SimilarTasks, TaskPrompt, TaskPrompts, prompt_text
from ludus.data.episode import digest_64
from ludus.data.episode_reader import numbered_lines
from ludus.errors import ConfigError, RunError

TRAIN, TEST = "train", "test"
DEFAULT_SIMILARITY = 0.8
"""From here on a prompt is a near copy of another."""
_HELD_OUT_FILES = ("episodes.jsonl", "test.jsonl", "train.jsonl")


def split_by_task(
    catalog: Catalog, *, test: float, similarity: float = DEFAULT_SIMILARITY, seed: int = 0
) -> int:
    """Give every kept episode its side, and return how many tasks went along with a near copy.

    At least one family is on each side, however small the part that is asked for.
    """
    names, families = _find_families(TaskPrompts(catalog), similarity)
    _check_splittable(catalog, names, families)
    chosen = _draw_test_families(names, families, test, seed)
    rows = (
        (name, family, TEST if family in chosen else TRAIN)
        for name, family in zip(names, families, strict=True)
    )
    catalog.create_table("sides", {"task": "VARCHAR", "family": "INTEGER", "side": "VARCHAR"}, rows)
    catalog.sql(
        "UPDATE episodes SET side = sides.side FROM sides "
        "WHERE episodes.task = sides.task AND reason IS NULL"
    )
    _check_disjoint(catalog)
    return len(names) - len(set(families))


def exclude_held_out(catalog: Catalog, sources: Iterable[str | Path], similarity: float) -> None:
    """Leave out the tasks of a held-out set and near copies of their prompts."""
    tasks, held_out = TaskPrompts(catalog), SimilarTasks(similarity)
    names: set[str] = set()
    for source in sources:
        for name, environment, text in _read_prompts(Path(source)):
            if name is not None:
                names.add(name)
            held_out.add(tasks.build_task(name, environment, text))
    leaked = ((task.name,) for task in tasks if task.name in names or held_out.find_similar(task))
    catalog.create_table("leaked", {"task": "VARCHAR"}, leaked)
    catalog.exclude(
        "held-out",
        "task IN (SELECT task FROM leaked)",
        detail="the task, or a near copy of its prompt, is in the held-out set",
    )


def _find_families(tasks: Iterable[TaskPrompt], similarity: float) -> tuple[list[str], list[int]]:
    """The names of all tasks, and for each the number of the first task of its family."""
    before = SimilarTasks(similarity)
    names: list[str] = []
    parents: list[int] = []

    def head(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    for number, task in enumerate(tasks):
        names.append(task.name)
        parents.append(number)
        for other in before.find_similar(task):
            first, second = sorted((head(number), head(other)))
            parents[second] = first
        before.add(task, number)
    return names, [head(number) for number in range(len(names))]


def _draw_test_families(names: list[str], families: list[int], test: float, seed: int) -> set[int]:
    """The families of the test side: those of which any task is drawn.

    So whoever comes into a family later can bring it to the test side, but never away from it.
    """
    draws: dict[int, float] = {}
    for name, family in zip(names, families, strict=True):
        draws[family] = min(digest_64(f"{seed}/{name}") / 2**64, draws.get(family, 1.0))
    ordered = sorted(draws, key=lambda family: draws[family])
    chosen = {family for family in ordered if draws[family] < test} or {ordered[0]}
    return chosen if len(chosen) < len(ordered) else set(ordered[:-1])


def _check_splittable(catalog: Catalog, names: list[str], families: list[int]) -> None:
    if len(set(families)) > 1:
        return
    near = len(names) > 1
    left = (
        f"{len(names)} tasks are left, and all are near copies of each other"
        if near
        else f"{len(names)} task is left, and a split needs two"
    )
    if copied := count_duplicate_tasks(catalog):
        raise ConfigError(
            f"There is nothing to split: {left}. {copied:,} more were left out because their "
            "episodes are exact copies of others. Keep those with --no-dedupe, or leave out --test."
        )
    more = ", or raise --likeness" if near else ""
    raise ConfigError(f"There is nothing to split: {left}. Leave out --test{more}.")


def _check_disjoint(catalog: Catalog) -> None:
    """That no task and no family is on both sides: cheap, and the one thing that must not fail."""
    both = catalog.sql(
        """SELECT count(*) FROM (
            SELECT family FROM episodes JOIN sides USING (task) WHERE reason IS NULL
            GROUP BY family HAVING count(DISTINCT episodes.side) > 1
        )"""
    )[0][0]
    if both:
        raise RunError(f"{both} tasks are on both sides of the split. This is a bug in Ludus.")


def _read_prompts(source: Path) -> Iterator[tuple[str | None, str | None, str]]:
    """Task, environment and question of each row of a run, a curated set or any JSONL of rows."""
    files = [source / name for name in _HELD_OUT_FILES] if source.is_dir() else [source]
    found = [file for file in files if file.is_file()]
    if not found:
        raise ConfigError(
            f"--held-out {source} is neither a file nor a folder with one of {', '.join(_HELD_OUT_FILES)}."
        )
    for number, line in numbered_lines(found[0]):
        try:
            row = from_json(line)
            messages = row["prompt"] if "prompt" in row else row["messages"]
            text = messages if isinstance(messages, str) else prompt_text(messages)
            yield row.get("group_id"), row.get("environment"), text
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{found[0]}:{number} has neither messages nor a prompt.") from None
