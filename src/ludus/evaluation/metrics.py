"""Metrics of an evaluation, with intervals: of one candidate, and of the difference of two.

Pure functions over attempts. A metric is None for attempts that it does not apply to. Each task
has the same weight, however many attempts were made at it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import fsum
from typing import Self

from ludus.data.bootstrap import Interval, bootstrap_interval
from ludus.data.tool_schema import JsonObject
from ludus.evaluation.attempts import Attempt
from ludus.evaluation.score_intervals import (
    newcombe_interval,
    score_interval_applies,
    wilson_interval,
)


@dataclass(frozen=True, slots=True)
class Metric:
    """A number for each attempt, which is averaged over tasks."""

    name: str
    title: str
    is_share: bool
    """Whether the values are 1 (hit) and 0 (miss) only."""
    compute: Callable[[Attempt], float | None]
    hide_if_zero: bool = False
    """Whether it is shown only if some candidate's is not 0."""


@dataclass(frozen=True, slots=True)
class MetricEstimate:
    """A mean over tasks, with its 95 % interval."""

    value: float
    low: float | None
    high: float | None
    """None without an interval: see `bootstrap_interval`."""
    n: int
    """Number of episodes, or of pairs of them."""

    @classmethod
    def from_means(cls, means: Sequence[float], interval: Interval | None, n: int) -> Self:
        """The estimate of a metric from its means over the attempts at each task."""
        low, high = interval or (None, None)
        return cls(_mean_over_tasks(means), low, high, n)

    def as_json(self) -> JsonObject:
        """The estimate of a metric, as `summary.json` has it."""
        return asdict(self)


def build_metrics(solved_at: float, environments: Sequence[str] = ()) -> tuple[Metric, ...]:
    """Return all metrics. A task is solved by a reward of `solved_at` or more.

    With several environments there is also a mean reward for each.
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


def estimate(metric: Metric, attempts: Iterable[Attempt]) -> MetricEstimate | None:
    """Estimate a metric; None where it applies to no attempt. Broken attempts never count."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        value = None if attempt.broken else metric.compute(attempt)
        if value is not None:
            values[attempt.task].append(value)
    if not values:
        return None
    tasks = list(values.values())
    means = [_mean_over_tasks(task) for task in tasks]
    has_score_interval = metric.is_share and score_interval_applies(tasks, means)
    interval = None if has_score_interval else bootstrap_interval(means)
    if interval is None and metric.is_share:
        interval = wilson_interval(fsum(means), len(means))
    return MetricEstimate.from_means(means, interval, sum(map(len, tasks)))


def estimate_difference(
    metric: Metric, base: Iterable[Attempt], other: Iterable[Attempt]
) -> MetricEstimate | None:
    """Estimate other - base, over the pairs of attempts that the metric applies to."""
    base_values = {each.plan_index: metric.compute(each) for each in base if not each.broken}
    pairs: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for attempt in other:
        before, after = base_values.get(attempt.plan_index), metric.compute(attempt)
        if before is not None and after is not None and not attempt.broken:
            pairs[attempt.task].append((before, after))
    if not pairs:
        return None
    tasks = list(pairs.values())
    means = [_mean_over_tasks([after - before for before, after in task]) for task in tasks]
    has_score_interval = metric.is_share and score_interval_applies(tasks, means)
    interval = None if has_score_interval else bootstrap_interval(means)
    if interval is None and metric.is_share:
        cells: defaultdict[tuple[float, float], float] = defaultdict(float)
        for task in tasks:
            for pair in task:
                cells[pair] += 1 / len(task)
        interval = newcombe_interval(cells[1, 1], cells[0, 1], cells[1, 0], cells[0, 0])
    return MetricEstimate.from_means(means, interval, sum(map(len, tasks)))


def _mean_over_tasks(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
