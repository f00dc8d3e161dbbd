"""The tasks that are left in a catalog, and what their prompts say that others do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json

from ludus.curate.catalog import Catalog
from ludus.curate.near import Commonness, NearCopies, shingles
from ludus.data.episode import digest_64

_SAMPLE_SIZE = 2_000
"""So many prompts of an environment tell what they all share."""
_FIRST_ROWS = """
    SELECT min(rowid) AS row, any_value(environment) AS environment
    FROM episodes WHERE reason IS NULL GROUP BY task
"""


class Task(NamedTuple):
    """A task, by the first of its episodes that is kept."""

    name: str
    environment: str
    question: int | None
    """A hash of its prompt; None where the prompt is that of most tasks, and tells nothing."""
    pieces: set[str]
    """The shingles of its prompt that are not the environment's own words."""


class Tasks:
    """Can be gone through as often as needed: prompts are read from the files, never held."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._seen: defaultdict[str, Commonness] = defaultdict(Commonness)
        for environment, text in self._sample():
            self._seen[environment].add(text)
        self._common = {name: seen.common for name, seen in self._seen.items()}

    def __iter__(self) -> Iterator[Task]:
        """In the order in which they were first read."""
        for _, _, line in self._catalog.lines(f"SELECT row, 1 FROM ({_FIRST_ROWS})"):
            if (asked := _asked(line)) is not None:
                yield self.told(*asked)

    def told(self, name: str | None, environment: str | None, text: str) -> Task:
        """A task by its prompt, without what most prompts of its environment say."""
        if environment is not None and environment in self._seen:
            constant = self._seen[environment].is_constant(text)
            pieces = shingles(text) - self._common[environment]
        else:
            constant = any(seen.is_constant(text) for seen in self._seen.values())
            pieces = shingles(text).difference(*self._common.values())
        question = None if constant or not text.strip() else digest_64(text.casefold().strip())
        return Task(name or "", environment or "", question, pieces)

    def _sample(self) -> Iterator[tuple[str, str]]:
        """Environments and prompts of tasks that lie evenly over each environment."""
        for _, _, line in self._catalog.lines(
            f"""SELECT row, 1 FROM (
                SELECT row, row_number() OVER (PARTITION BY environment ORDER BY row) AS number,
                    ceil(count(*) OVER (PARTITION BY environment) / {_SAMPLE_SIZE}) AS every
                FROM ({_FIRST_ROWS})
            ) WHERE (number - 1) % every = 0"""
        ):
            if (asked := _asked(line)) is not None:
                yield asked[1], asked[2]


class Repeated:
    """Finds tasks that ask what another one asked, in the same words or nearly."""

    def __init__(self, likeness: float) -> None:
        self._near = NearCopies(likeness)
        self._numbers: list[int] = []
        self._questions: dict[int, int] = {}

    def like(self, task: Task) -> list[int]:
        """The numbers of added tasks that this one repeats."""
        found = [self._numbers[at] for at in self._near.like(task.pieces)] if task.pieces else []
        if task.question is not None and task.question in self._questions:
            found.append(self._questions[task.question])
        return found

    def add(self, task: Task, number: int = 0) -> None:
        if task.pieces:
            self._near.add(task.pieces)
            self._numbers.append(number)
        if task.question is not None:
            self._questions.setdefault(task.question, number)


def _asked(line: bytes) -> tuple[str, str, str] | None:
    """Task, environment and question of an episode.

    None where a line is an episode to DuckDB alone, such as one with a comma too many. It is left
    out when a row is made of it.
    """
    try:
        fields = from_json(line.strip())
        return fields["group_id"], fields["environment"], question(fields.get("messages", ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def question(messages: Sequence[Mapping[str, Any]]) -> str:
    """What a model is asked before it speaks for the first time; the system prompt is not asked."""
    asked = []
    for message in messages:
        if message.get("role") == "assistant":
            break
        if message.get("role") != "system":
            asked.append(words(message.get("content")))
    return "\n".join(asked)


def words(content: Any) -> str:
    """The words of a message, wherever they stand in it; pictures have none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
