"""The tasks that are left in a catalog, and what their prompts say that others do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json

from ludus.curate.catalog import Catalog
from ludus.curate.near import common_shingles, shingles

_SAMPLE = 2_000
"""So many prompts of an environment tell what they all share."""
_FIRST_ROWS = """
    SELECT min(rowid) AS row, any_value(environment) AS environment, task
    FROM episodes WHERE reason IS NULL GROUP BY task
"""


class Task(NamedTuple):
    """A task, by the first of its episodes that is kept."""

    name: str
    environment: str
    pieces: set[str]
    """The shingles of its prompt that are not the environment's own words; empty where the task is
    not told by its prompt."""


class Tasks:
    """Can be gone through as often as needed: prompts are read from the files, never held."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        environments = catalog.sql(
            "SELECT environment, count(DISTINCT task) FROM episodes WHERE reason IS NULL GROUP BY 1"
        )
        self.common: Mapping[str, frozenset[str]] = {
            name: common_shingles(self._sampled(name, count)) for name, count in environments
        }

    def __iter__(self) -> Iterator[Task]:
        """In the order in which they were first read."""
        for row, environment, name in self._catalog.stream(f"{_FIRST_ROWS} ORDER BY row"):
            text = question(from_json(self._catalog.line(row))["messages"])
            yield Task(name, environment, self.telling(text, environment))

    def telling(self, text: str, environment: str | None) -> set[str]:
        """What a prompt says that is not in most of its environment's prompts."""
        if environment is not None and environment in self.common:
            return shingles(text) - self.common[environment]
        return shingles(text).difference(*self.common.values())

    def _sampled(self, environment: str, count: int) -> Iterator[str]:
        """Evenly over the environment's tasks, so that the order of files does not matter."""
        every = -(-count // _SAMPLE)
        rows = self._catalog.stream(
            f"SELECT row FROM ({_FIRST_ROWS}) WHERE environment = ? ORDER BY row", environment
        )
        for number, (row,) in enumerate(rows):
            if number % every == 0:
                yield question(from_json(self._catalog.line(row))["messages"])


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
