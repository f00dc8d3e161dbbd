"""The tasks that are left in a catalog, and what their prompts say that others do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json

from ludus.curation.catalog import Catalog
from ludus.curation.minhash import MinHashIndex, ShingleCounts, shingles
from ludus.data.episode import digest_64

_SAMPLE_SIZE = 2_000
"""So many prompts of an environment tell what they all share."""
_FIRST_ROWS_QUERY = """
    SELECT min(rowid) AS row, any_value(environment) AS environment
    FROM episodes WHERE reason IS NULL GROUP BY task
"""


class TaskPrompt(NamedTuple):
    """A task, by the first of its episodes that is kept."""

    name: str
    environment: str
    prompt_hash: int | None
    """A hash of its prompt; None where the prompt is that of most tasks, and tells nothing."""
    shingles: set[str]
    """The shingles of its prompt that are not the environment's own words."""


class TaskPrompts:
    """Can be gone through as often as needed: prompts are read from the files, never held."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._shingle_counts: defaultdict[str, ShingleCounts] = defaultdict(ShingleCounts)
        for environment, text in self._sample_prompts():
            self._shingle_counts[environment].add(text)
        self._common_shingles = {
            name: seen.common_shingles for name, seen in self._shingle_counts.items()
        }

    def __iter__(self) -> Iterator[TaskPrompt]:
        """In the order in which they were first read."""
        for _, _, line in self._catalog.read_lines(f"SELECT row, 1 FROM ({_FIRST_ROWS_QUERY})"):
            if (asked := _parse_episode(line)) is not None:
                yield self.build_task(*asked)

    def build_task(self, name: str | None, environment: str | None, text: str) -> TaskPrompt:
        """A task by its prompt, without what most prompts of its environment say."""
        if environment is not None and environment in self._shingle_counts:
            constant = self._shingle_counts[environment].is_constant(text)
            pieces = shingles(text) - self._common_shingles[environment]
        else:
            constant = any(seen.is_constant(text) for seen in self._shingle_counts.values())
            pieces = shingles(text).difference(*self._common_shingles.values())
        question = None if constant or not text.strip() else digest_64(text.casefold().strip())
        return TaskPrompt(name or "", environment or "", question, pieces)

    def _sample_prompts(self) -> Iterator[tuple[str, str]]:
        """Environments and prompts of tasks that lie evenly over each environment."""
        for _, _, line in self._catalog.read_lines(
            f"""SELECT row, 1 FROM (
                SELECT row, row_number() OVER (PARTITION BY environment ORDER BY row) AS number,
                    ceil(count(*) OVER (PARTITION BY environment) / {_SAMPLE_SIZE}) AS every
                FROM ({_FIRST_ROWS_QUERY})
            ) WHERE (number - 1) % every = 0"""
        ):
            if (asked := _parse_episode(line)) is not None:
                yield asked[1], asked[2]


class SimilarTasks:
    """Finds tasks that ask what another one asked, in the same words or nearly."""

    def __init__(self, threshold: float) -> None:
        self._index = MinHashIndex(threshold)
        self._numbers: list[int] = []
        self._by_prompt_hash: dict[int, int] = {}

    def find_similar(self, task: TaskPrompt) -> list[int]:
        """The numbers of added tasks that this one repeats."""
        found = (
            [self._numbers[at] for at in self._index.find_similar(task.shingles)]
            if task.shingles
            else []
        )
        if task.prompt_hash is not None and task.prompt_hash in self._by_prompt_hash:
            found.append(self._by_prompt_hash[task.prompt_hash])
        return found

    def add(self, task: TaskPrompt, number: int = 0) -> None:
        if task.shingles:
            self._index.add(task.shingles)
            self._numbers.append(number)
        if task.prompt_hash is not None:
            self._by_prompt_hash.setdefault(task.prompt_hash, number)


def _parse_episode(line: bytes) -> tuple[str, str, str] | None:
    """Task, environment and question of an episode.

    None where a line is an episode to DuckDB alone, such as one with a comma too many. It is left
    out when a row is made of it.
    """
    try:
        fields = from_json(line.strip())
        return fields["group_id"], fields["environment"], prompt_text(fields.get("messages", ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def prompt_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """What a model is asked before it speaks for the first time; the system prompt is not asked."""
    asked = []
    for message in messages:
        if message.get("role") == "assistant":
            break
        if message.get("role") != "system":
            asked.append(content_text(message.get("content")))
    return "\n".join(asked)


def content_text(content: Any) -> str:
    """The words of a message, wherever they stand in it; pictures have none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
