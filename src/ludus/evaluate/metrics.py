"""What candidates are measured by, with intervals, alone and against each other.

Pure functions over attempts. A value of None says that an attempt tells nothing about a metric.
Each task weighs the same, however often it was tried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import fsum

from ludus.data.tools import JsonObject
from ludus.evaluate.attempts import Attempt
from ludus.evaluate.intervals import Interval, bootstrap, paired, wilson


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of an attempt whose mean over tasks is told."""

    name: str
    title: str
    share: bool
    """Whether an attempt is a hit (1) or a miss (0); else it has any number."""
    of: Callable[[Attempt], float | None]
    rare: bool = False
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


def metrics_at(solved_at: float, environments: Sequence[str] = ()) -> tuple[Metric, ...]:
    """All metrics; from the reward `solved_at` on a task is solved.

    Of several environments the reward is told of each one by itself as well.
    """

    def accuracy(attempt: Attempt) -> float | None:
        return None if attempt.reward is None else float(attempt.reward >= solved_at)

    def format_compliance(attempt: Attempt) -> float | None:
        return None if attempt.compliant is None else float(attempt.compliant)

    return (
        Metric("format_compliance", "Format compliance", True, format_compliance),
        Metric("cut_off", "Cut off", True, lambda it: float(it.cut_off), rare=True),
        Metric("accuracy", "Accuracy", True, accuracy),
        Metric("mean_reward", "Mean reward", False, lambda it: it.reward),
        *map(_reward_in, environments if len(environments) > 1 else ()),
        Metric("reply_tokens", "Tokens in a reply", False, lambda it: it.reply_tokens),
    )


def _reward_in(environment: str) -> Metric:
    def reward(attempt: Attempt) -> float | None:
        return attempt.reward if attempt.environment == environment else None

    return Metric(f"mean_reward/{environment}", f"Reward in {environment}", False, reward)


def estimate(metric: Metric, attempts: Iterable[Attempt]) -> Estimate | None:
    """The mean over tasks; None where no attempt tells anything. Broken ones never do."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        value = None if attempt.broken else metric.of(attempt)
        if value is not None:
            values[attempt.task].append(value)
    if not values:
        return None
    means = [_mean(found) for found in values.values()]
    tasks = list(values.values())
    interval = None if _exact(metric, tasks, means) else bootstrap(means)
    if interval is None and metric.share:
        interval = wilson(fsum(means), len(means))
    return _estimate(means, interval, sum(map(len, tasks)))


def difference(
    metric: Metric, base: Iterable[Attempt], other: Iterable[Attempt]
) -> Estimate | None:
    """How much more the other has, over what both have played and both tell something about."""
    pairs = _pairs(metric, base, other)
    if not pairs:
        return None
    means = [_mean([ours - theirs for theirs, ours in task]) for task in pairs]
    interval = None if _exact(metric, pairs, means) else bootstrap(means)
    if interval is None and metric.share:
        interval = _paired(pairs)
    return _estimate(means, interval, sum(map(len, pairs)))


def _exact(metric: Metric, tasks: Iterable[Sequence[object]], means: Sequence[float]) -> bool:
    """Whether tasks can be counted as hits and misses, for which score intervals are made.

    Where attempts at one task came out differently, its mean is no count, and tasks are drawn
    again instead, each with all its attempts. Means that are all alike, or very few, leave nothing
    to draw: then the score interval, which knows how few tasks there are, is the more honest one.
    """
    whole = all(len(set(attempts)) == 1 for attempts in tasks)
    return metric.share and (whole or len(set(means)) == 1)


def _pairs(
    metric: Metric, base: Iterable[Attempt], other: Iterable[Attempt]
) -> list[list[tuple[float, float]]]:
    """By task: the values of the base and of the other, wherever both have one."""
    theirs = {attempt.place: metric.of(attempt) for attempt in base if not attempt.broken}
    pairs: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for attempt in other:
        before, after = theirs.get(attempt.place), metric.of(attempt)
        if before is not None and after is not None and not attempt.broken:
            pairs[attempt.task].append((before, after))
    return list(pairs.values())


def _paired(tasks: Sequence[Sequence[tuple[float, float]]]) -> Interval:
    cells: defaultdict[tuple[float, float], float] = defaultdict(float)
    for pairs in tasks:
        for pair in pairs:
            cells[pair] += 1 / len(pairs)
    return paired(cells[1, 1], cells[0, 1], cells[1, 0], cells[0, 0])


def _estimate(means: Sequence[float], interval: Interval | None, n: int) -> Estimate:
    low, high = interval or (None, None)
    return Estimate(_mean(means), low, high, n)


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
