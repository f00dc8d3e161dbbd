"""What candidates are measured by, with intervals, alone and against each other.

Pure functions over attempts. A value of None says that an attempt tells nothing about a metric.
Each task weighs the same, however often it was tried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import fsum

from ludus.data.tool_schema import JsonObject
from ludus.evaluation.attempts import Attempt
from ludus.evaluation.intervals import (
    Interval,
    bootstrap_interval,
    newcombe_interval,
    wilson_interval,
)


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of an attempt whose mean over tasks is told."""

    name: str
    title: str
    is_share: bool
    """Whether an attempt is a hit (1) or a miss (0); else it has any number."""
    compute: Callable[[Attempt], float | None]
    hide_if_zero: bool = False
    """Whether it is shown only where it is not 0."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and where it may well lie."""

    value: float
    low: float | None
    high: float | None
    """None where there are too few tasks, or none that differ: see `intervals.bootstrap`."""
    n: int
    """Episodes, or pairs of them, that it is the mean of."""

    def as_json(self) -> JsonObject:
        return asdict(self)


def build_metrics(solved_at: float, environments: Sequence[str] = ()) -> tuple[Metric, ...]:
    """All metrics; from the reward `solved_at` on a task is solved.

    Of several environments the reward is told of each one by itself as well.
    """

    def accuracy(attempt: Attempt) -> float | None:
        return None if attempt.reward is None else float(attempt.reward >= solved_at)

    def format_compliance(attempt: Attempt) -> float | None:
        return None if attempt.format_compliant is None else float(attempt.format_compliant)

    return (
        Metric("format_compliance", "Format compliance", True, format_compliance),
        Metric("cut_off", "Cut off", True, lambda it: float(it.cut_off), hide_if_zero=True),
        Metric("accuracy", "Accuracy", True, accuracy),
        Metric("mean_reward", "Mean reward", False, lambda it: it.reward),
        *map(_environment_reward, environments if len(environments) > 1 else ()),
        Metric("reply_tokens", "Tokens in a reply", False, lambda it: it.reply_tokens),
    )


def _environment_reward(environment: str) -> Metric:
    def reward(attempt: Attempt) -> float | None:
        return attempt.reward if attempt.environment == environment else None

    return Metric(f"mean_reward/{environment}", f"Reward in {environment}", False, reward)


def estimate(metric: Metric, attempts: Iterable[Attempt]) -> Estimate | None:
    """The mean over tasks; None where no attempt tells anything. Broken ones never do."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        value = None if attempt.broken else metric.compute(attempt)
        if value is not None:
            values[attempt.task].append(value)
    if not values:
        return None
    means = [_mean(found) for found in values.values()]
    tasks = list(values.values())
    interval = None if _uses_score_interval(metric, tasks, means) else bootstrap_interval(means)
    if interval is None and metric.is_share:
        interval = wilson_interval(fsum(means), len(means))
    return _build_estimate(means, interval, sum(map(len, tasks)))


def estimate_difference(
    metric: Metric, base: Iterable[Attempt], other: Iterable[Attempt]
) -> Estimate | None:
    """How much more the other has, over what both have played and both tell something about."""
    pairs = _pair_values(metric, base, other)
    if not pairs:
        return None
    means = [_mean([ours - theirs for theirs, ours in task]) for task in pairs]
    interval = None if _uses_score_interval(metric, pairs, means) else bootstrap_interval(means)
    if interval is None and metric.is_share:
        interval = _paired_share_interval(pairs)
    return _build_estimate(means, interval, sum(map(len, pairs)))


def _uses_score_interval(
    metric: Metric, tasks: Iterable[Sequence[object]], means: Sequence[float]
) -> bool:
    """Whether tasks can be counted as hits and misses, for which score intervals are made.

    Where attempts at one task came out differently, its mean is no count, and tasks are drawn
    again instead, each with all its attempts. Means that are all alike, or very few, leave nothing
    to draw: then the score interval, which knows how few tasks there are, is the more honest one.
    """
    whole = all(len(set(attempts)) == 1 for attempts in tasks)
    return metric.is_share and (whole or len(set(means)) == 1)


def _pair_values(
    metric: Metric, base: Iterable[Attempt], other: Iterable[Attempt]
) -> list[list[tuple[float, float]]]:
    """By task: the values of the base and of the other, wherever both have one."""
    theirs = {attempt.plan_index: metric.compute(attempt) for attempt in base if not attempt.broken}
    pairs: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for attempt in other:
        before, after = theirs.get(attempt.plan_index), metric.compute(attempt)
        if before is not None and after is not None and not attempt.broken:
            pairs[attempt.task].append((before, after))
    return list(pairs.values())


def _paired_share_interval(tasks: Sequence[Sequence[tuple[float, float]]]) -> Interval:
    cells: defaultdict[tuple[float, float], float] = defaultdict(float)
    for pairs in tasks:
        for pair in pairs:
            cells[pair] += 1 / len(pairs)
    return newcombe_interval(cells[1, 1], cells[0, 1], cells[1, 0], cells[0, 0])


def _build_estimate(means: Sequence[float], interval: Interval | None, n: int) -> Estimate:
    low, high = interval or (None, None)
    return Estimate(_mean(means), low, high, n)


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
