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

_UNSPACED = "\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Scripts that set no space between words: there every letter counts as one."""
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|[^\w\s]")
_WIDTH = 3
_SKETCH = 120
"""Numbers in a sketch: many divisors, so bands of many widths."""
_SEED = 1
_RECALL = 0.99
_SLACK = 0.05
"""Sketches tell a likeness to within this; a copy too many is better than one that slips by."""
_COMMON = 0.1
"""In more than this part of the texts, a shingle is the template's."""
_CONSTANT = 0.2
"""More than this part of the tasks have the same prompt: then their ids alone tell them apart."""
_FEW = 4
"""So many texts may share a shingle in any case: they are copies of each other."""


def shingles(text: str) -> set[str]:
    """Every three words in a row; marks count as words, case and spaces do not count."""
    words = _WORD.findall(text.casefold())
    if len(words) <= _WIDTH:
        return {" ".join(words)} if words else set()
    return {" ".join(words[at : at + _WIDTH]) for at in range(len(words) - _WIDTH + 1)}


class Commonness:
    """How many of some texts share each shingle."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._texts: Counter[str] = Counter()

    def add(self, text: str) -> None:
        self._counts.update(shingles(text))
        self._texts[text] += 1

    def is_constant(self, text: str) -> bool:
        """Whether so many are this very text that it is no task's own: that of a game, say."""
        return self._texts[text] > max(_CONSTANT * self._texts.total(), _FEW)

    @property
    def common(self) -> frozenset[str]:
        """What so many of the texts share that it cannot tell them apart."""
        most = max(_COMMON * self._texts.total(), _FEW)
        return frozenset(shingle for shingle, count in self._counts.items() if count > most)


class _Sketch(Protocol):
    """rensa's: the least of many hashes of a set."""

    def update(self, pieces: list[str]) -> None: ...

    def jaccard(self, other: _Sketch) -> float: ...


class NearCopies:
    """Finds, among the texts that it was given, those that are near copies of another one."""

    def __init__(self, threshold: float) -> None:
        """`threshold` is the part of their shingles that two texts share: 1 is all of them."""
        try:
            import rensa
        except ImportError:
            raise MissingExtra.of("curate", "Finding near copies") from None
        self._least = threshold - _SLACK if threshold < 1 else 1.0
        self._sketch_of: Callable[..., _Sketch] = rensa.RMinHash
        self._candidates = rensa.RMinHashLSH(threshold, _SKETCH, _bands(threshold))
        self._sketches: list[_Sketch] = []

    def like(self, pieces: Iterable[str]) -> list[int]:
        """The numbers of the added texts that this one's shingles make a near copy of."""
        sketch = self._sketch(pieces)
        return self._found(sketch)

    def add(self, pieces: Iterable[str]) -> list[int]:
        """As `like`, and give this text the next number, from 0."""
        sketch = self._sketch(pieces)
        found = self._found(sketch)
        self._candidates.insert(len(self._sketches), sketch)
        self._sketches.append(sketch)
        return found

    def _sketch(self, pieces: Iterable[str]) -> _Sketch:
        sketch = self._sketch_of(num_perm=_SKETCH, seed=_SEED)
        sketch.update(list(pieces))
        return sketch

    def _found(self, sketch: _Sketch) -> list[int]:
        candidates = sorted(set(self._candidates.query(sketch)))
        return [at for at in candidates if sketch.jaccard(self._sketches[at]) >= self._least]


def _bands(threshold: float) -> int:
    """The fewest bands that miss no more than one in a hundred pairs at the threshold."""
    for rows in (20, 15, 12, 10, 8, 6, 5, 4, 3, 2):
        bands = _SKETCH // rows
        if 1 - (1 - threshold**rows) ** bands >= _RECALL:
            return bands
    return _SKETCH
