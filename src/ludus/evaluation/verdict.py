"""Verdicts: whether a candidate is better or worse than the first, in words.

A difference is resolved if its 95 % interval excludes 0. If it is not, the verdict has the number
of episodes that would probably resolve a difference of the observed size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, floor, fsum, log10, sqrt
from statistics import NormalDist

from ludus.data.estimates import MIN_SAMPLES, Z_975, MeanEstimate
from ludus.data.tool_schema import JsonObject
from ludus.evaluation.metrics import PASS_PREFIX, Metric, PairedTask, mean

POWER = 0.8
"""Probability with which so many tasks resolve a difference of the given size."""
_QUANTILES = Z_975 + NormalDist().inv_cdf(POWER)
_MAX_VARIANCE = 0.5
"""Of the difference of two shares on one task: at most 1/4 from each candidate, where their
successes are independent. Candidates that solve the same tasks need fewer episodes."""


def tasks_to_detect(effect: float, variance: float) -> float:
    """Tasks with which the 95 % interval of a difference of `effect` probably excludes zero.

    `variance` is that of the difference on one task.
    """
    return _QUANTILES**2 * variance / effect**2


def episodes_to_detect(effect: float) -> int:
    """Episodes per candidate to show a difference of two shares, before any is played."""
    return ceil(tasks_to_detect(effect, _MAX_VARIANCE))


def detectable_effect(episodes: int) -> float:
    """The smallest difference of two shares that so many episodes are enough for."""
    return min(1.0, _QUANTILES * sqrt(_MAX_VARIANCE / episodes))


_MAX_EPISODES = 10_000_000
"""Above it the proposal would be of no use, and the difference of no consequence."""
NO_INTERVAL = "(no interval)"


class Outcome(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    NOT_RESOLVED = "not resolved"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an evaluation says about a candidate and the first one, in one metric."""

    outcome: Outcome
    difference: MeanEstimate
    episodes_needed: int | None = None
    """Episodes per candidate that would resolve a difference of this size; None if it is resolved,
    or if no number can be given."""

    def as_json(self) -> JsonObject:
        return {"outcome": self.outcome.value, "episodes_needed": self.episodes_needed}

    def describe(self, metric: Metric, label: str, base: str) -> str:
        """Return the verdict as one or two sentences."""
        difference, title = format_difference(self.difference, metric), metric.title
        if not metric.name.startswith(PASS_PREFIX):
            title = title.lower()
        if self.outcome is not Outcome.NOT_RESOLVED:
            return (
                f"{label} is {self.outcome} than {base} in {title}: {difference}, "
                f"n = {self.difference.n:,}."
            )
        text = (
            f"The difference between {label} and {base} in {title} is not resolved at "
            f"n = {self.difference.n:,}: {difference}."
        )
        if self.episodes_needed is not None:
            text += (
                f" About {self.episodes_needed:,} episodes would resolve a difference of this size."
            )
        return text


def judge_difference(difference: MeanEstimate, tasks: Sequence[PairedTask]) -> Verdict:
    """Return the verdict of a difference between two candidates, which `tasks` gave."""
    if difference.low is not None and difference.low > 0:
        return Verdict(Outcome.BETTER, difference)
    if difference.high is not None and difference.high < 0:
        return Verdict(Outcome.WORSE, difference)
    if difference.low is None and difference.value and len(tasks) >= MIN_SAMPLES:
        # Without an interval, because it is the same for every task.
        return Verdict(Outcome.BETTER if difference.value > 0 else Outcome.WORSE, difference)
    return Verdict(Outcome.NOT_RESOLVED, difference, _episodes_needed(difference, tasks))


def format_difference(difference: MeanEstimate, metric: Metric) -> str:
    """Format a difference with its interval: +12.0 pp (+3.1 to +20.4)."""
    text = metric.format_number(difference.value, "+") + (" pp" if metric.is_share else "")
    if difference.low is None or difference.high is None:
        return f"{text} {NO_INTERVAL}"
    low, high = (metric.format_number(end, "+") for end in (difference.low, difference.high))
    return f"{text} ({low} to {high})"


def _episodes_needed(difference: MeanEstimate, tasks: Sequence[PairedTask]) -> int | None:
    """The number of episodes for a power of 80 %, rounded up to two digits."""
    n = len(tasks)
    if n < MIN_SAMPLES or difference.value == 0:
        return None
    center = mean([task.difference for task in tasks])
    variance = fsum((task.difference - center) ** 2 for task in tasks) / (n - 1)
    needed_tasks = max(n + 1, tasks_to_detect(center, variance))
    episodes = needed_tasks * difference.n / n
    if episodes > _MAX_EPISODES:
        return None
    unit = int(10 ** max(0, floor(log10(episodes)) - 1))
    return ceil(episodes / unit) * unit
