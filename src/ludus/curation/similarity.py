"""Near duplicates of texts, found with MinHash and locality-sensitive hashing (LSH).

Texts are compared by the Jaccard similarity of their shingles (all sequences of three words). LSH
finds candidates without comparing all pairs; their similarity is then estimated from their
MinHashes, which take about 3 kB per text.

What all prompts of an environment share does not tell tasks apart: "What is 12 + 34?" and "What is
56 + 78?" are different tasks although most of their words are the same, and a game's prompt may be
the same for all tasks. `PromptShingleCounts` finds such common shingles, so that they can be
removed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from pydantic_core import from_json

from ludus.curation.catalog import Catalog
from ludus.data.files import stable_hash
from ludus.data.messages import prompt_text
from ludus.errors import MissingExtra

_UNSPACED_SCRIPTS = "\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Scripts without spaces between words, where every character counts as a word."""
_WORD = re.compile(rf"[{_UNSPACED_SCRIPTS}]|[^\W{_UNSPACED_SCRIPTS}]+|[^\w\s]")
_SHINGLE_WORDS = 3
_NUM_PERM = 120
"""Hash values per MinHash. 120 has many divisors, so that bands can have many widths."""
_MINHASH_SEED = 1
_MIN_RECALL = 0.99
_JACCARD_TOLERANCE = 0.05
"""Error of the estimated similarity: a false positive is better than a missed duplicate."""


def shingles(text: str) -> set[str]:
    """Return all sequences of three words. Punctuation counts as words; case is ignored."""
    words = _WORD.findall(text.casefold())
    if len(words) <= _SHINGLE_WORDS:
        return {" ".join(words)} if words else set()
    return {
        " ".join(words[at : at + _SHINGLE_WORDS]) for at in range(len(words) - _SHINGLE_WORDS + 1)
    }


class _MinHash(Protocol):
    """The MinHash class of rensa."""

    def update(self, shingles: list[str]) -> None: ...

    def jaccard(self, other: _MinHash) -> float: ...


class MinHashIndex:
    """An LSH index of texts that finds near duplicates."""

    def __init__(self, threshold: float) -> None:
        """`threshold` is the Jaccard similarity of near duplicates, at most 1."""
        try:
            import rensa
        except ImportError:
            raise MissingExtra.of("curate", "Finding near duplicates") from None
        self._min_jaccard = threshold - _JACCARD_TOLERANCE if threshold < 1 else 1.0
        self._minhash_class: Callable[..., _MinHash] = rensa.RMinHash
        # The fewest LSH bands that find 99 % of the pairs at the threshold.
        num_bands = _NUM_PERM
        for rows in (20, 15, 12, 10, 8, 6, 5, 4, 3, 2):
            if 1 - (1 - threshold**rows) ** (_NUM_PERM // rows) >= _MIN_RECALL:
                num_bands = _NUM_PERM // rows
                break
        self._lsh = rensa.RMinHashLSH(threshold, _NUM_PERM, num_bands)
        self._minhashes: list[_MinHash] = []

    def find_similar(self, shingles: Iterable[str]) -> list[int]:
        """Return the numbers of added texts that are near duplicates of this one."""
        return self._find_matches(self._build_minhash(shingles))

    def add(self, shingles: Iterable[str]) -> list[int]:
        """Add a text under the next number, from 0, and return what `find_similar` does."""
        minhash = self._build_minhash(shingles)
        matches = self._find_matches(minhash)
        self._lsh.insert(len(self._minhashes), minhash)
        self._minhashes.append(minhash)
        return matches

    def _build_minhash(self, shingles: Iterable[str]) -> _MinHash:
        minhash = self._minhash_class(num_perm=_NUM_PERM, seed=_MINHASH_SEED)
        minhash.update(list(shingles))
        return minhash

    def _find_matches(self, minhash: _MinHash) -> list[int]:
        candidates = sorted(set(self._lsh.query(minhash)))
        return [
            at for at in candidates if minhash.jaccard(self._minhashes[at]) >= self._min_jaccard
        ]


_SAMPLE_SIZE = 2_000
"""Prompts per environment from which common shingles are found."""
_COMMON_SHARE = 0.1
"""A shingle in more than this share of the texts belongs to the prompt template."""
_CONSTANT_SHARE = 0.2
"""A text of more than this share of the tasks does not tell tasks apart."""
_MIN_COMMON_COUNT = 4
"""Up to this many texts may share a shingle or be equal: they are duplicates."""
_FIRST_ROWS_QUERY = """
    SELECT min(rowid) AS row, any_value(environment) AS environment
    FROM episodes WHERE reason IS NULL GROUP BY task
"""


class TaskPrompt(NamedTuple):
    """A task and what is specific to its prompt."""

    name: str
    environment: str
    prompt_hash: int | None
    """None if the prompt is empty, or the same for many tasks."""
    shingles: set[str]
    """The shingles of the prompt without those that are common in the environment."""


class PromptShingleCounts:
    """Counts how many prompts of an environment contain each shingle."""

    def __init__(self) -> None:
        self._shingle_counts: Counter[str] = Counter()
        self._text_counts: Counter[str] = Counter()

    def add(self, text: str) -> None:
        self._shingle_counts.update(shingles(text))
        self._text_counts[text] += 1

    def is_constant(self, text: str) -> bool:
        """Whether so many tasks have this text that it does not identify a task."""
        return self._text_counts[text] > max(
            _CONSTANT_SHARE * self._text_counts.total(), _MIN_COMMON_COUNT
        )

    @property
    def common_shingles(self) -> frozenset[str]:
        """Shingles in so many texts that they do not tell them apart."""
        limit = max(_COMMON_SHARE * self._text_counts.total(), _MIN_COMMON_COUNT)
        return frozenset(
            shingle for shingle, count in self._shingle_counts.items() if count > limit
        )


class TaskPrompts:
    """An iterable of the tasks with kept episodes, in the order of their first episode.

    The prompt is that of the first kept episode. It is read from the files at every iteration.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._shingle_counts: defaultdict[str, PromptShingleCounts] = defaultdict(
            PromptShingleCounts
        )
        sample = f"""SELECT row, 1 FROM (
                SELECT row, row_number() OVER (PARTITION BY environment ORDER BY row) AS number,
                    ceil(count(*) OVER (PARTITION BY environment) / {_SAMPLE_SIZE}) AS every
                FROM ({_FIRST_ROWS_QUERY})
            ) WHERE (number - 1) % every = 0"""
        for _, environment, text in self._read_prompts(sample):
            self._shingle_counts[environment].add(text)
        self._common_shingles = {
            name: counts.common_shingles for name, counts in self._shingle_counts.items()
        }

    def __iter__(self) -> Iterator[TaskPrompt]:
        for prompt in self._read_prompts(f"SELECT row, 1 FROM ({_FIRST_ROWS_QUERY})"):
            yield self.build_task(*prompt)

    def build_task(self, name: str | None, environment: str | None, text: str) -> TaskPrompt:
        """Reduce a prompt to what is specific to it within its environment, or within all."""
        if environment is not None and environment in self._shingle_counts:
            is_constant = self._shingle_counts[environment].is_constant(text)
            specific = shingles(text) - self._common_shingles[environment]
        else:
            is_constant = any(c.is_constant(text) for c in self._shingle_counts.values())
            specific = shingles(text).difference(*self._common_shingles.values())
        prompt_hash = (
            None if is_constant or not text.strip() else stable_hash(text.casefold().strip())
        )
        return TaskPrompt(name or "", environment or "", prompt_hash, specific)

    def _read_prompts(self, query: str) -> Iterator[tuple[str, str, str]]:
        """Yield task, environment and prompt of the episodes that a query selects.

        Lines that DuckDB can parse and Python cannot, such as those with a trailing comma, are
        excluded when rows are written. Here the next episode of the task stands in for them.
        """
        for row, _, line in self._catalog.read_lines(query):
            if (prompt := _parse_prompt(line) or self._find_later_prompt(row)) is not None:
                yield prompt

    def _find_later_prompt(self, row: int) -> tuple[str, str, str] | None:
        """The prompt of a later kept episode of the same task."""
        later = """SELECT rowid, 1 FROM episodes WHERE reason IS NULL AND rowid > ?
            AND task = (SELECT task FROM episodes WHERE rowid = ?)"""
        lines = self._catalog.read_lines(later, row, row)
        return next((found for _, _, line in lines if (found := _parse_prompt(line))), None)


def _parse_prompt(line: bytes) -> tuple[str, str, str] | None:
    """Task, environment and prompt of an episode; None for a line that is none."""
    try:
        fields = from_json(line.strip())
        return fields["group_id"], fields["environment"], prompt_text(fields.get("messages", ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class SimilarTasks:
    """Finds tasks whose prompt is the same or nearly the same as an added task's."""

    def __init__(self, threshold: float) -> None:
        self._index = MinHashIndex(threshold)
        self._numbers: list[int] = []
        self._by_prompt_hash: dict[int, int] = {}

    def find_similar(self, task: TaskPrompt) -> list[int]:
        """Return the numbers of similar tasks."""
        similar: list[int] = []
        if task.shingles:
            similar += [self._numbers[at] for at in self._index.find_similar(task.shingles)]
        if task.prompt_hash is not None and task.prompt_hash in self._by_prompt_hash:
            similar.append(self._by_prompt_hash[task.prompt_hash])
        return similar

    def add(self, task: TaskPrompt, number: int = 0) -> None:
        if task.shingles:
            self._index.add(task.shingles)
            self._numbers.append(number)
        if task.prompt_hash is not None:
            self._by_prompt_hash.setdefault(task.prompt_hash, number)
