"""Rewards of several models on the same tasks, and which differences are more than noise.

An evaluation is the reward of each task, in an order that all evaluations of a run share.
Differences are taken task by task, so that the difficulty of tasks cancels. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log, sqrt
from statistics import fmean, stdev

from ludus.data.interval_estimates import MIN_SAMPLES

Rewards = Sequence[float | None]
"""The reward of each task; None: unscored."""
SMOOTHING_EVALUATIONS = 3.0
"""Distance at which an evaluation weighs 1/e. Neighbouring evaluations are of similar models."""
MIN_PREFERENCE = 1.3
"""Standard errors by which a later model must be better to replace an earlier one."""
FALL_WINDOWS = (1, 3)
"""Latest evaluations whose mean is compared with the best mean of three earlier ones in a row."""
MIN_FALL_ERRORS = 3.0
"""Standard errors from which a fall is more than noise, before `FALL_LUCK`."""
FALL_LUCK = 0.3
"""Added to them, times the log of the number of evaluations: the best of many is partly luck."""


def differences(before: Rewards, after: Rewards) -> list[float]:
    """The change in reward of each task that has both rewards."""
    pairs = zip(before, after, strict=False)
    return [new - old for old, new in pairs if old is not None and new is not None]


def mean_rewards(evaluations: Sequence[Rewards], weights: Sequence[float] = ()) -> Rewards:
    """The mean reward of each task over several evaluations."""
    means: list[float | None] = []
    for column in zip(*evaluations, strict=False):
        pairs = zip(column, weights or [1.0] * len(column), strict=True)
        scored = [(value, weight) for value, weight in pairs if value is not None]
        total = sum(weight for _, weight in scored)
        means.append(sum(value * weight for value, weight in scored) / total if scored else None)
    return means


def standard_errors(values: Sequence[float]) -> float:
    """The distance of the mean from 0, in standard errors."""
    if len(values) < MIN_SAMPLES:
        return 0.0
    mean, error = fmean(values), stdev(values) / sqrt(len(values))
    # The deviation of equal differences is a rounding error.
    if error > 1e-9 * abs(mean):
        return mean / error
    return inf if mean > 0 else -inf if mean < 0 else 0.0


def is_better(evaluations: Sequence[Rewards], later: int, earlier: int) -> bool:
    """Whether the model of evaluation `later` is better than the one of `earlier`.

    Both are judged by a mean over all evaluations, weighted by distance: single ones are noisy,
    and the best of many is rarely the best model.
    """

    def smoothed(at: int) -> Rewards:
        distances = (abs(at - other) for other in range(len(evaluations)))
        return mean_rewards(evaluations, [exp(-each / SMOOTHING_EVALUATIONS) for each in distances])

    return standard_errors(differences(smoothed(earlier), smoothed(later))) > MIN_PREFERENCE


def find_fall(evaluations: Sequence[Rewards], count: int) -> tuple[range, float, float] | None:
    """Find earlier evaluations that were better than the latest ones by more than noise.

    Returns their indices, their mean reward, and the mean reward of the latest ones. `count` is
    the number of all evaluations of the run, including forgotten ones.
    """
    for size in FALL_WINDOWS:
        earlier = evaluations[: len(evaluations) - size]
        if not earlier:
            break
        width = min(max(FALL_WINDOWS), len(earlier))
        windows = [range(at, at + width) for at in range(len(earlier) - width + 1)]
        means = [mean_rewards([earlier[at] for at in window]) for window in windows]
        best = max(range(len(windows)), key=lambda at: _mean(means[at]))
        now = mean_rewards(evaluations[-size:])
        fall = -standard_errors(differences(means[best], now))
        if fall >= MIN_FALL_ERRORS + FALL_LUCK * log(max(1, count - size)):
            return windows[best], _mean(means[best]), _mean(now)
    return None


def _mean(rewards: Rewards) -> float:
    scored = [reward for reward in rewards if reward is not None]
    return fmean(scored) if scored else -inf
