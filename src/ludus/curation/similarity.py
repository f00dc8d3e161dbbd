"""Near duplicates of prompts: kept in one split, and compared with held-out sets.

Texts are compared by the Jaccard similarity of their shingles (all sequences of three words) with
MinHash and locality-sensitive hashing (LSH). LSH finds candidates without comparing all pairs;
their similarity is then estimated from their MinHashes, which take about 3 kB per text.

What all prompts of an environment share does not tell tasks apart: "What is 12 + 34?" and "What is
56 + 78?" are different tasks although most of their words are the same, and a game's prompt may be
the same for all tasks. `TaskPrompts` removes such common shingles before prompts are compared.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic_core import from_json

from ludus.curation.catalog import Catalog
from ludus.curation.filters import DUPLICATE, DUPLICATE_PAIR
from ludus.data.files import stable_hash
from ludus.data.json_files import numbered_lines
from ludus.data.messages import prompt_text
from ludus.errors import ConfigError, MissingExtra, RunError

if TYPE_CHECKING:
    from rensa import RMinHash

_UNSPACED_SCRIPTS = "\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Scripts without spaces between words: every character counts as a word."""
_WORD = re.compile(rf"[{_UNSPACED_SCRIPTS}]|[^\W{_UNSPACED_SCRIPTS}]+|[^\w\s]")
_SHINGLE_WORDS = 3
_NUM_PERM = 120
"""Hash values per MinHash. 120 has many divisors, so that bands can have many widths."""
_MINHASH_SEED = 1
_MIN_RECALL = 0.99
_JACCARD_TOLERANCE = 0.05
"""Error of the estimated similarity: a false positive is better than a missed duplicate."""


def shingles(text: str) -> set[str]:
    """All sequences of three words. Each punctuation mark counts as a word; case is ignored."""
    words = _WORD.findall(text.casefold())
    if len(words) <= _SHINGLE_WORDS:
        return {" ".join(words)} if words else set()
    return {
        " ".join(words[at : at + _SHINGLE_WORDS]) for at in range(len(words) - _SHINGLE_WORDS + 1)
    }


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
    """The shingles of the prompt that are not common in the environment."""


class TaskPrompts:
    """An iterable of the tasks with kept episodes, in the order of their first episode.

    The prompt is the first kept episode's. It is read from the files at every iteration.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        shingle_counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        text_counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        sample = f"""SELECT row, 1 FROM (
                SELECT row, row_number() OVER (PARTITION BY environment ORDER BY row) AS number,
                    ceil(count(*) OVER (PARTITION BY environment) / {_SAMPLE_SIZE}) AS every
                FROM ({_FIRST_ROWS_QUERY})
            ) WHERE (number - 1) % every = 0"""
        for _, environment, text in self._read_prompts(sample):
            shingle_counts[environment].update(shingles(text))
            text_counts[environment][text] += 1
        self._common_shingles: dict[str, set[str]] = {}
        self._constant_texts: dict[str, set[str]] = {}
        for name, texts in text_counts.items():
            limit = max(_COMMON_SHARE * texts.total(), _MIN_COMMON_COUNT)
            common = {each for each, count in shingle_counts[name].items() if count > limit}
            limit = max(_CONSTANT_SHARE * texts.total(), _MIN_COMMON_COUNT)
            constant = {text for text, count in texts.items() if count > limit}
            self._common_shingles[name], self._constant_texts[name] = common, constant

    def __iter__(self) -> Iterator[TaskPrompt]:
        for prompt in self._read_prompts(f"SELECT row, 1 FROM ({_FIRST_ROWS_QUERY})"):
            yield self.build_task(*prompt)

    def build_task(self, name: str | None, environment: str | None, text: str) -> TaskPrompt:
        """Reduce a prompt to what is specific within its environment."""
        if environment is not None and environment in self._common_shingles:
            is_constant = text in self._constant_texts[environment]
            specific = shingles(text) - self._common_shingles[environment]
        else:
            is_constant = any(text in texts for texts in self._constant_texts.values())
            specific = shingles(text).difference(*self._common_shingles.values())
        prompt_hash = (
            None if is_constant or not text.strip() else stable_hash(text.casefold().strip())
        )
        return TaskPrompt(name or "", environment or "", prompt_hash, specific)

    def _read_prompts(self, query: str) -> Iterator[tuple[str, str, str]]:
        """Yield task, environment and prompt of the episodes that a query selects.

        Lines that DuckDB can parse and Python cannot, such as those with a trailing comma, are
        excluded when rows are written.
        """
        for _, _, line in self._catalog.read_lines(query):
            try:
                fields = from_json(line.strip())
                text = prompt_text(fields.get("messages", ()))
                yield fields["group_id"], fields["environment"], text
            except (ValueError, KeyError, TypeError, AttributeError):
                continue


class SimilarTasks:
    """An LSH index of tasks that finds those with the same or nearly the same prompt."""

    def __init__(self, threshold: float) -> None:
        """`threshold` is the Jaccard similarity of near duplicates, at most 1."""
        try:
            import rensa
        except ImportError:
            raise MissingExtra.of("curate", "Finding near duplicates") from None
        self._min_jaccard = threshold - _JACCARD_TOLERANCE if threshold < 1 else 1.0
        # The fewest LSH bands that find 99 % of the pairs at the threshold.
        num_bands = _NUM_PERM
        for rows in (20, 15, 12, 10, 8, 6, 5, 4, 3, 2):
            if 1 - (1 - threshold**rows) ** (_NUM_PERM // rows) >= _MIN_RECALL:
                num_bands = _NUM_PERM // rows
                break
        self._lsh = rensa.RMinHashLSH(threshold, _NUM_PERM, num_bands)
        self._added: list[tuple[RMinHash, int]] = []
        self._by_prompt_hash: dict[int, int] = {}

    def find_similar(self, task: TaskPrompt) -> list[int]:
        """Return the numbers of similar tasks."""
        similar: list[int] = []
        if task.shingles:
            minhash = _build_minhash(task.shingles)
            for at in sorted(set(self._lsh.query(minhash))):
                other, number = self._added[at]
                if minhash.jaccard(other) >= self._min_jaccard:
                    similar.append(number)
        if task.prompt_hash is not None and task.prompt_hash in self._by_prompt_hash:
            similar.append(self._by_prompt_hash[task.prompt_hash])
        return similar

    def add(self, task: TaskPrompt, number: int = 0) -> None:
        if task.shingles:
            minhash = _build_minhash(task.shingles)
            self._lsh.insert(len(self._added), minhash)
            self._added.append((minhash, number))
        if task.prompt_hash is not None:
            self._by_prompt_hash.setdefault(task.prompt_hash, number)


def _build_minhash(shingles: Iterable[str]) -> RMinHash:
    import rensa

    minhash = rensa.RMinHash(num_perm=_NUM_PERM, seed=_MINHASH_SEED)
    minhash.update(list(shingles))
    return minhash


_HELD_OUT_FILES = ("episodes.jsonl", "test.jsonl", "train.jsonl")


def exclude_held_out_tasks(
    catalog: Catalog, sources: Iterable[str | Path], similarity: float
) -> None:
    """Exclude the tasks of held-out sets and tasks with near duplicates of their prompts."""
    tasks, held_out = TaskPrompts(catalog), SimilarTasks(similarity)
    names: set[str] = set()
    for source in sources:
        for name, environment, text in _read_held_out_prompts(Path(source)):
            if name is not None:
                names.add(name)
            held_out.add(tasks.build_task(name, environment, text))
    leaked = ((task.name,) for task in tasks if task.name in names or held_out.find_similar(task))
    catalog.create_table("leaked", {"task": "VARCHAR"}, leaked)
    catalog.exclude(
        "held-out",
        "task IN (SELECT task FROM leaked)",
        detail="the task, or a near duplicate of its prompt, is in the held-out set",
    )


def _read_held_out_prompts(source: Path) -> Iterator[tuple[str | None, str | None, str]]:
    """Yield task, environment and prompt of the rows of a held-out run, data set or file."""
    candidates = [source / name for name in _HELD_OUT_FILES] if source.is_dir() else [source]
    path = next((file for file in candidates if file.is_file()), None)
    if path is None:
        raise ConfigError(
            f"`held_out` must be a file or a folder with one of {', '.join(_HELD_OUT_FILES)}, "
            f"got {source}."
        )
    for number, line in numbered_lines(path):
        try:
            row = from_json(line)
            messages = row["prompt"] if "prompt" in row else row["messages"]
            text = prompt_text(messages)
            task, environment = row.get("group_id"), row.get("environment")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{path}:{number} has neither `messages` nor `prompt`.") from None
        yield task, environment, text


TRAIN, TEST = "train", "test"


def split_by_task(catalog: Catalog, *, test_size: float, similarity: float, seed: int) -> int:
    """Assign a split to every kept episode; families of similar tasks stay together.

    Returns the number of tasks that follow a near duplicate into its split.
    """
    names, families = _find_families(TaskPrompts(catalog), similarity)
    if len(set(families)) < 2:
        problem = f"a split needs two tasks, got {len(names)}"
        if len(names) > 1:
            problem = f"all {len(names)} tasks are near duplicates of each other"
        advice = "Do not set `test_size`."
        [(copies,)] = catalog.sql(
            """SELECT count(DISTINCT task) FROM episodes WHERE reason IN (?, ?)
                AND task NOT IN (SELECT task FROM episodes WHERE reason IS NULL)""",
            DUPLICATE,
            DUPLICATE_PAIR,
        )
        if copies:
            problem += f"; the episodes of {copies:,} more are exact duplicates"
            advice = "Use `dedupe=False` to keep those, or do not set `test_size`."
        raise ConfigError(f"Cannot split: {problem}. {advice}")
    target = min(max(1, floor(test_size * len(names) + 0.5)), len(names) - 1)
    test_families = _draw_test_families(names, families, target, seed)
    rows = (
        (name, TEST if family in test_families else TRAIN)
        for name, family in zip(names, families, strict=True)
    )
    catalog.create_table("splits", {"task": "VARCHAR", "split": "VARCHAR"}, rows)
    catalog.sql(
        "UPDATE episodes SET split = splits.split FROM splits "
        "WHERE episodes.task = splits.task AND reason IS NULL"
    )
    return len(names) - len(set(families))


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
    """Draw families with `target` tasks together, or fewer if no other fits.

    A family is drawn by the lowest hash of its tasks. If all are larger than the target, the first
    of the smallest is drawn, but never all families.
    """
    draws: dict[int, int] = {}
    for name, family in zip(names, families, strict=True):
        draw = stable_hash(f"{seed}/{name}")
        draws[family] = min(draw, draws.get(family, draw))
    sizes = Counter(families)
    ordered = sorted(draws, key=lambda family: draws[family])
    drawn, remaining = set[int](), target
    for family in ordered:
        if sizes[family] <= remaining:
            drawn.add(family)
            remaining -= sizes[family]
    return drawn or {min(ordered, key=lambda family: sizes[family])}
