"""Agreement of two scores of the same episodes: rank correlation, and accuracy on pairs.

Pure functions. Intervals are bootstraps over tasks, because attempts at one task are not
independent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from math import atanh, ceil, sqrt, tanh
from random import Random
from typing import NamedTuple

from ludus.data.estimates import (
    MIN_SAMPLES,
    Z_975,
    Interval,
    expanded_percentile_interval,
    is_zero_variance,
)
from ludus.data.tool_schema import JsonObject

_MAX_ROUNDS, _MIN_ROUNDS = 1_000, 200
_MAX_DRAWS = 500_000
"""Scores drawn over all bootstrap rounds: about a second of work."""
_MAX_BOOTSTRAP_EPISODES = 2_500
"""With more episodes the interval of the correlation is computed from a formula."""
_MAX_PAIRED_ATTEMPTS = 100
"""Attempts at one task of which all pairs are compared; of more attempts, evenly spaced ones."""
_MAX_FISHER_CORRELATION = 1 - 1e-9
"""Beyond it Fisher's z is not finite."""


class ScorePair(NamedTuple):
    """Two scores of one episode."""

    group_id: str
    reference: float
    score: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far scores agree with reference scores; None where that cannot be said."""

    episodes: int
    tasks: int
    rank_correlation: float | None
    """Spearman's, with mean ranks for ties; None where all scores of one side are equal."""
    rank_correlation_interval: Interval | None
    pairs: int
    """Pairs of attempts at the same task whose reference scores differ."""
    pair_accuracy: float | None
    """Share of these pairs that the score orders alike; a tie counts one half."""
    pair_accuracy_interval: Interval | None

    def as_json(self) -> JsonObject:
        return asdict(self)


def measure_agreement(scores: Iterable[ScorePair]) -> Agreement:
    """Measure how far the scores agree with the references."""
    groups: defaultdict[str, list[ScorePair]] = defaultdict(list)
    for score in scores:
        groups[score.group_id].append(score)
    tasks = list(groups.values())
    correlation = _correlate_tasks(tasks)
    counts: list[_PairCounts] = []
    if correlation is not None:  # Where a side never varies, all pairs would be ties.
        counts = [count for task in tasks if (count := _count_pairs(task)).pairs]
    return Agreement(
        episodes=sum(map(len, tasks)),
        tasks=len(tasks),
        rank_correlation=correlation,
        rank_correlation_interval=_correlation_interval(tasks, correlation),
        pairs=sum(count.pairs for count in counts),
        pair_accuracy=_pair_accuracy(counts) if counts else None,
        pair_accuracy_interval=_pair_accuracy_interval(counts),
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None for values that are all equal, or fewer than two."""
    if is_zero_variance(first) or is_zero_variance(second):
        return None
    x, y = _mean_ranks(first), _mean_ranks(second)
    center = (len(first) + 1) / 2
    covariance = sum((a - center) * (b - center) for a, b in zip(x, y, strict=True))
    variances = sum((a - center) ** 2 for a in x) * sum((b - center) ** 2 for b in y)
    return max(-1.0, min(1.0, covariance / sqrt(variances)))


def _mean_ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values get the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for position in order[start : end + 1]:
            ranks[position] = (start + end) / 2 + 1
        start = end + 1
    return ranks


def _correlate_tasks(tasks: Sequence[Sequence[ScorePair]]) -> float | None:
    scores = [score for task in tasks for score in task]
    references = [score.reference for score in scores]
    return rank_correlation(references, [score.score for score in scores])


def _correlation_interval(
    tasks: Sequence[Sequence[ScorePair]], observed: float | None
) -> Interval | None:
    if observed is None or len(tasks) < MIN_SAMPLES:
        return None
    episodes = sum(map(len, tasks))
    if episodes > _MAX_BOOTSTRAP_EPISODES:
        return _fisher_interval(observed, len(tasks))
    rounds = max(_MIN_ROUNDS, min(_MAX_ROUNDS, _MAX_DRAWS // episodes))

    def resample(rng: Random) -> float:
        # Without variance a sample says nothing about the order.
        return _correlate_tasks(rng.choices(tasks, k=len(tasks))) or 0.0

    interval = expanded_percentile_interval(resample, observed, n=len(tasks), rounds=rounds)
    # Where every resample has the same order, an interval would look like certainty.
    return interval if interval.low < interval.high else None


def _fisher_interval(correlation: float, n: int) -> Interval | None:
    """The interval by Fisher's z, with the standard error of Bonett and Wright (2000)."""
    if abs(correlation) > _MAX_FISHER_CORRELATION:
        return None
    z = atanh(correlation)
    margin = Z_975 * sqrt((1 + correlation**2 / 2) / (n - 3))
    return Interval(tanh(z - margin), tanh(z + margin))


class _PairCounts(NamedTuple):
    """Pairs of attempts at one task whose reference scores differ."""

    concordant: float
    """Pairs that the score orders like the reference; a tie counts one half."""
    pairs: int


def _count_pairs(task: Sequence[ScorePair]) -> _PairCounts:
    concordant, pairs = 0.0, 0
    sample = task[:: ceil(len(task) / _MAX_PAIRED_ATTEMPTS)]
    for one, other in combinations(sample, 2):
        if is_zero_variance([one.reference, other.reference]):
            continue
        pairs += 1
        if is_zero_variance([one.score, other.score]):
            concordant += 0.5
        else:
            concordant += (one.reference < other.reference) == (one.score < other.score)
    return _PairCounts(concordant, pairs)


def _pair_accuracy(tasks: Sequence[_PairCounts]) -> float:
    return sum(task.concordant for task in tasks) / sum(task.pairs for task in tasks)


def _pair_accuracy_interval(tasks: Sequence[_PairCounts]) -> Interval | None:
    """Bootstrap over tasks; None where all have the same accuracy, and so would every resample."""
    shares = [task.concordant / task.pairs for task in tasks]
    if len(tasks) < MIN_SAMPLES or min(shares) == max(shares):
        return None
    rounds = max(_MIN_ROUNDS, min(_MAX_ROUNDS, _MAX_DRAWS // len(tasks)))
    return expanded_percentile_interval(
        lambda rng: _pair_accuracy(rng.choices(tasks, k=len(tasks))),
        _pair_accuracy(tasks),
        n=len(tasks),
        rounds=rounds,
    )
