"""Near copies: texts that share most of their wording.

Texts are compared by their shingles, every three words in a row. MinHash finds the candidates
without comparing all with all; how alike two of them are is then estimated from their sketches,
which take about three kilobytes a text.

What all prompts of an environment share says nothing about a task. "What is 12 + 34?" and "What is
56 + 78?" are not copies of each other, though most of their words are the same; and where a game's
prompt is always the same, the task is not in it at all. So common shingles are taken away first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from ludus.errors import MissingExtra

_UNSPACED_SCRIPTS = "\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Scripts that set no space between words: there every letter counts as one."""
_WORD = re.compile(rf"[{_UNSPACED_SCRIPTS}]|[^\W{_UNSPACED_SCRIPTS}]+|[^\w\s]")
_SHINGLE_WORDS = 3
_NUM_PERM = 120
"""Numbers in a sketch: many divisors, so bands of many widths."""
_MINHASH_SEED = 1
_MIN_RECALL = 0.99
_JACCARD_TOLERANCE = 0.05
"""Sketches tell a likeness to within this; a copy too many is better than one that slips by."""
_COMMON_SHARE = 0.1
"""In more than this part of the texts, a shingle is the template's."""
_CONSTANT_SHARE = 0.2
"""More than this part of the tasks have the same prompt: then their ids alone tell them apart."""
_MIN_COMMON_COUNT = 4
"""So many texts may share a shingle in any case: they are copies of each other."""


def shingles(text: str) -> set[str]:
    """Every three words in a row; marks count as words, case and spaces do not count."""
    words = _WORD.findall(text.casefold())
    if len(words) <= _SHINGLE_WORDS:
        return {" ".join(words)} if words else set()
    return {
        " ".join(words[at : at + _SHINGLE_WORDS]) for at in range(len(words) - _SHINGLE_WORDS + 1)
    }


class ShingleCounts:
    """How many of some texts share each shingle."""

    def __init__(self) -> None:
        self._shingle_counts: Counter[str] = Counter()
        self._text_counts: Counter[str] = Counter()

    def add(self, text: str) -> None:
        self._shingle_counts.update(shingles(text))
        self._text_counts[text] += 1

    def is_constant(self, text: str) -> bool:
        """Whether so many are this very text that it is no task's own: that of a game, say."""
        return self._text_counts[text] > max(
            _CONSTANT_SHARE * self._text_counts.total(), _MIN_COMMON_COUNT
        )

    @property
    def common_shingles(self) -> frozenset[str]:
        """What so many of the texts share that it cannot tell them apart."""
        most = max(_COMMON_SHARE * self._text_counts.total(), _MIN_COMMON_COUNT)
        return frozenset(shingle for shingle, count in self._shingle_counts.items() if count > most)


class _MinHash(Protocol):
    """rensa's: the least of many hashes of a set."""

    def update(self, pieces: list[str]) -> None: ...

    def jaccard(self, other: _MinHash) -> float: ...


class MinHashIndex:
    """Finds, among the texts that it was given, those that are near copies of another one."""

    def __init__(self, threshold: float) -> None:
        """`threshold` is the part of their shingles that two texts share: 1 is all of them."""
        try:
            import rensa
        except ImportError:
            raise MissingExtra.of("curate", "Finding near copies") from None
        self._min_jaccard = threshold - _JACCARD_TOLERANCE if threshold < 1 else 1.0
        self._minhash_class: Callable[..., _MinHash] = rensa.RMinHash
        self._lsh = rensa.RMinHashLSH(threshold, _NUM_PERM, _num_bands(threshold))
        self._minhashes: list[_MinHash] = []

    def find_similar(self, shingles: Iterable[str]) -> list[int]:
        """The numbers of the added texts that this one's shingles make a near copy of."""
        sketch = self._build_minhash(shingles)
        return self._find_matches(sketch)

    def add(self, shingles: Iterable[str]) -> list[int]:
        """As `like`, and give this text the next number, from 0."""
        sketch = self._build_minhash(shingles)
        found = self._find_matches(sketch)
        self._lsh.insert(len(self._minhashes), sketch)
        self._minhashes.append(sketch)
        return found

    def _build_minhash(self, shingles: Iterable[str]) -> _MinHash:
        sketch = self._minhash_class(num_perm=_NUM_PERM, seed=_MINHASH_SEED)
        sketch.update(list(shingles))
        return sketch

    def _find_matches(self, minhash: _MinHash) -> list[int]:
        candidates = sorted(set(self._lsh.query(minhash)))
        return [
            at for at in candidates if minhash.jaccard(self._minhashes[at]) >= self._min_jaccard
        ]


def _num_bands(threshold: float) -> int:
    """The fewest bands that miss no more than one in a hundred pairs at the threshold."""
    for rows in (20, 15, 12, 10, 8, 6, 5, 4, 3, 2):
        bands = _NUM_PERM // rows
        if 1 - (1 - threshold**rows) ** bands >= _MIN_RECALL:
            return bands
    return _NUM_PERM
