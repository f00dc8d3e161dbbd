"""The tasks that are left in a catalog, and what their prompts say that others do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json

from ludus.curate.catalog import Catalog
from ludus.curate.near import Commonness, shingles

_SAMPLE = 2_000
"""So many prompts of an environment tell what they all share."""
_FIRST_ROWS = """
    SELECT min(rowid) AS row, any_value(environment) AS environment
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
        self.common = self._shared()

    def __iter__(self) -> Iterator[Task]:
        """In the order in which they were first read."""
        for _, _, line in self._catalog.lines(f"SELECT row, 1 FROM ({_FIRST_ROWS})"):
            if (asked := _asked(line)) is not None:
                name, environment, text = asked
                yield Task(name, environment, self.telling(text, environment))

    def telling(self, text: str, environment: str | None) -> set[str]:
        """What a prompt says that is not in most of its environment's prompts."""
        if environment is not None and environment in self.common:
            return shingles(text) - self.common[environment]
        return shingles(text).difference(*self.common.values())

    def _shared(self) -> Mapping[str, frozenset[str]]:
        """What the prompts of each environment share, from tasks that lie evenly over it."""
        seen: defaultdict[str, Commonness] = defaultdict(Commonness)
        for _, _, line in self._catalog.lines(
            f"""SELECT row, 1 FROM (
                SELECT row, row_number() OVER (PARTITION BY environment ORDER BY row) AS number,
                    ceil(count(*) OVER (PARTITION BY environment) / {_SAMPLE}) AS every
                FROM ({_FIRST_ROWS})
            ) WHERE (number - 1) % every = 0"""
        ):
            if (asked := _asked(line)) is not None:
                _, environment, text = asked
                seen[environment].add(text)
        return {environment: found.common for environment, found in seen.items()}


def _asked(line: bytes) -> tuple[str, str, str] | None:
    """Task, environment and question of an episode.

    None where a line is an episode to DuckDB alone, such as one with a comma too many. It is left
    out when a row is made of it.
    """
    try:
        fields = from_json(line)
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
