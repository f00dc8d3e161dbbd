"""Near duplicates of texts, found with MinHash and locality-sensitive hashing (LSH).

Texts are compared by the Jaccard similarity of their shingles (all sequences of three words). LSH
finds candidates without comparing all pairs; their similarity is then estimated from their
MinHashes, which take about 3 kB per text.
"""

from __future__ import annotations

import re
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
