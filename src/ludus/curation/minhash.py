"""Near duplicates of texts, found with MinHash and locality-sensitive hashing (LSH).

Texts are compared by the Jaccard similarity of their shingles (all sequences of three words). LSH
finds candidates without comparing all pairs; their similarity is then estimated from their
MinHashes, which take about 3 kB per text.

What all prompts of an environment share does not tell tasks apart: "What is 12 + 34?" and "What is
56 + 78?" are different tasks although most of their words are the same, and a game's prompt may be
the same for all tasks. `ShingleCounts` finds such common shingles, so that they can be removed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

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
_COMMON_SHARE = 0.1
"""A shingle in more than this share of the texts belongs to the prompt template."""
_CONSTANT_SHARE = 0.2
"""A text of more than this share of the tasks does not tell tasks apart."""
_MIN_COMMON_COUNT = 4
"""Up to this many texts may share a shingle or be equal: they are duplicates."""


def shingles(text: str) -> set[str]:
    """Return all sequences of three words. Punctuation counts as words; case is ignored."""
    words = _WORD.findall(text.casefold())
    if len(words) <= _SHINGLE_WORDS:
        return {" ".join(words)} if words else set()
    return {
        " ".join(words[at : at + _SHINGLE_WORDS]) for at in range(len(words) - _SHINGLE_WORDS + 1)
    }


class ShingleCounts:
    """Counts how many texts contain each shingle."""

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
