"""Agreement of two scores of the same episodes: rank correlation, and accuracy on pairs.

Pure functions. Intervals are bootstraps over tasks, because attempts at one task are not
independent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import atanh, ceil, sqrt, tanh
from random import Random
from typing import NamedTuple

from ludus.data.bootstrap import MIN_SAMPLES, Z_975, Interval, expanded_percentile_interval
from ludus.data.reward_variance import is_zero_variance
from ludus.data.tool_schema import JsonObject

_MAX_ROUNDS, _MIN_ROUNDS = 1_000, 200
_MAX_DRAWS = 500_000
"""Scores drawn over all bootstrap rounds: about a second of work."""
_MAX_BOOTSTRAP_EPISODES = 2_500
"""With more episodes the interval of the correlation is computed from a formula."""
_MAX_COMPARED = 100
"""Attempts at one task of which all pairs are compared; of more attempts, evenly spaced ones."""
_ALMOST_1 = 1 - 1e-9


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
        return {
            "episodes": self.episodes,
            "tasks": self.tasks,
            "rank_correlation": self.rank_correlation,
            "rank_correlation_interval": self.rank_correlation_interval,
            "pairs": self.pairs,
            "pair_accuracy": self.pair_accuracy,
            "pair_accuracy_interval": self.pair_accuracy_interval,
        }


def measure_agreement(scores: Iterable[ScorePair]) -> Agreement:
    """Measure how far the scores agree with the references."""
    groups: defaultdict[str, list[ScorePair]] = defaultdict(list)
    for score in scores:
        groups[score.group_id].append(score)
    tasks = list(groups.values())
    correlation = _correlate_tasks(tasks)
    wins: list[_OrderedPairs] = []
    if correlation is not None:  # Where a side never varies, all pairs would be ties.
        wins = [win for task in tasks if (win := _count_ordered_pairs(task)).pairs]
    pairs = sum(win.pairs for win in wins)
    return Agreement(
        episodes=sum(map(len, tasks)),
        tasks=len(tasks),
        rank_correlation=correlation,
        rank_correlation_interval=_correlation_interval(tasks, correlation),
        pairs=pairs,
        pair_accuracy=_accuracy(wins) if wins else None,
        pair_accuracy_interval=_accuracy_interval(wins),
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
    if abs(correlation) > _ALMOST_1:
        return None
    z = atanh(correlation)
    margin = Z_975 * sqrt((1 + correlation**2 / 2) / (n - 3))
    return Interval(tanh(z - margin), tanh(z + margin))


class _OrderedPairs(NamedTuple):
    alike: float
    pairs: int


def _count_ordered_pairs(task: Sequence[ScorePair]) -> _OrderedPairs:
    alike, pairs = 0.0, 0
    sample = task[:: ceil(len(task) / _MAX_COMPARED)]
    for one, other in combinations(sample, 2):
        if is_zero_variance([one.reference, other.reference]):
            continue
        pairs += 1
        if is_zero_variance([one.score, other.score]):
            alike += 0.5
        else:
            alike += (one.reference < other.reference) == (one.score < other.score)
    return _OrderedPairs(alike, pairs)


def _accuracy(tasks: Sequence[_OrderedPairs]) -> float:
    return sum(task.alike for task in tasks) / sum(task.pairs for task in tasks)


def _accuracy_interval(tasks: Sequence[_OrderedPairs]) -> Interval | None:
    """None where all tasks are alike: every resample would be the same, which is not certainty."""
    shares = [task.alike / task.pairs for task in tasks]
    if len(tasks) < MIN_SAMPLES or min(shares) == max(shares):
        return None
    rounds = max(_MIN_ROUNDS, min(_MAX_ROUNDS, _MAX_DRAWS // len(tasks)))
    return expanded_percentile_interval(
        lambda rng: _accuracy(rng.choices(tasks, k=len(tasks))),
        _accuracy(tasks),
        n=len(tasks),
        rounds=rounds,
    )
