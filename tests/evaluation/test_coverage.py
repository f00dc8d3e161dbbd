"""95 % intervals cover the truth in 93 to 97 of 100 simulated evaluations, for each estimator.

Seeds are fixed, so that the results are the same every time. Shares are simulated where the number
of tasks allows the nominal coverage at all: with one success expected in 20 tasks no interval of a
count can have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ludus.data.interval_estimates import (
    Interval,
    mean_interval,
    paired_share_interval,
    share_interval,
)
from ludus.evaluation.metrics import pass_at_k

DRAWS = 2_000
Draw = Callable[[np.random.Generator], tuple[Interval | None, float]]
"""Simulates one evaluation: the interval, and the true value."""


def coverage(draw: Draw) -> float:
    rng = np.random.default_rng(19)
    hits = 0
    for _ in range(DRAWS):
        interval, truth = draw(rng)
        hits += interval is not None and interval.low <= truth <= interval.high
    return hits / DRAWS


def share(n: int, p: float) -> Draw:
    """One attempt at each task."""
    return lambda rng: (share_interval([float(x) for x in rng.random(n) < p], n), p)


def clustered_share(n: int, attempts: int, a: float, b: float) -> Draw:
    """Several attempts at tasks whose difficulty is drawn from a beta distribution."""

    def draw(rng: np.random.Generator) -> tuple[Interval | None, float]:
        shares = rng.binomial(attempts, rng.beta(a, b, n)) / attempts
        return share_interval(shares.tolist(), n * attempts), a / (a + b)

    return draw


def paired_share(n: int, p: float, q: float, both: float) -> Draw:
    """Two candidates that solve a task with p and q, and with `both` together."""
    cells = [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)]
    chances = [both, p - both, q - both, 1 - p - q + both]

    def draw(rng: np.random.Generator) -> tuple[Interval | None, float]:
        return paired_share_interval([cells[at] for at in rng.choice(4, n, p=chances)]), p - q

    return draw


def clustered_pairs(n: int, attempts: int, gain: float) -> Draw:
    """Two candidates, the second better by `gain` at tasks of all difficulties."""

    def draw(rng: np.random.Generator) -> tuple[Interval | None, float]:
        difficulty = rng.uniform(0.05, 0.95 - gain, n)
        before = rng.binomial(attempts, difficulty) / attempts
        after = rng.binomial(attempts, difficulty + gain) / attempts
        pairs = list(zip(after.tolist(), before.tolist(), strict=True))
        return paired_share_interval(pairs), gain

    return draw


def pass_at(k: int, n: int, attempts: int, a: float, b: float) -> Draw:
    truth = 1 - np.prod([(b + i) / (a + b + i) for i in range(k)])

    def draw(rng: np.random.Generator) -> tuple[Interval | None, float]:
        solved = rng.random((n, attempts)) < rng.beta(a, b, n)[:, None]
        values = [pass_at_k([float(x) for x in task], k) for task in solved]
        return share_interval([x for x in values if x is not None], n * attempts), float(truth)

    return draw


def reward(n: int, sample: Callable[[np.random.Generator, int], np.ndarray], truth: float) -> Draw:
    return lambda rng: (mean_interval(sample(rng, n).tolist()), truth)


def graded(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.choice([0.0, 0.2, 0.5, 1.0], n, p=[0.3, 0.3, 0.3, 0.1])


def paired_reward(n: int) -> Draw:
    """Rewards of two candidates at the same tasks: skewed, and correlated by the task."""

    def draw(rng: np.random.Generator) -> tuple[Interval | None, float]:
        task = rng.exponential(1.0, n)
        before, after = task + rng.normal(0, 0.5, n), task + rng.exponential(0.7, n)
        return mean_interval((after - before).tolist()), 0.7

    return draw


def clustered_reward(n: int, attempts: int) -> Draw:
    """The means over attempts at each task, whose rewards have something in common."""

    def draw(rng: np.random.Generator) -> tuple[Interval | None, float]:
        task = rng.exponential(1.0, n)
        means = (task[:, None] + rng.exponential(1.0, (n, attempts))).mean(1)
        return mean_interval(means.tolist()), 2.0

    return draw


def cases() -> Iterator[tuple[str, Draw]]:
    for n, p in ((30, 0.5), (50, 0.2), (50, 0.86), (200, 0.05), (200, 0.6)):
        yield f"share {n} {p}", share(n, p)
    for n, attempts, a, b in ((20, 4, 2, 2), (50, 2, 0.3, 3), (50, 8, 5, 0.5), (200, 4, 0.5, 0.5)):
        yield f"clustered share {n} {attempts} {a} {b}", clustered_share(n, attempts, a, b)
    for n, p, q, both in ((30, 0.5, 0.4, 0.3), (50, 0.5, 0.6, 0.42), (200, 0.3, 0.4, 0.28),
                          (200, 0.05, 0.1, 0.03), (200, 0.8, 0.9, 0.76)):  # fmt: skip
        yield f"paired share {n} {p} {q}", paired_share(n, p, q, both)
    for n, attempts, gain in ((20, 4, 0.1), (50, 2, 0.2), (200, 8, 0.05)):
        yield f"clustered paired share {n} {attempts} {gain}", clustered_pairs(n, attempts, gain)
    for k, n, attempts, a, b in ((2, 50, 4, 1, 3), (4, 50, 4, 1, 3), (4, 100, 8, 0.5, 2)):
        yield f"pass@{k} {n} {attempts}", pass_at(k, n, attempts, a, b)
    for n in (20, 50, 200):
        yield f"mean reward {n}", reward(n, graded, 0.31)
        yield f"skewed mean {n}", reward(n, lambda rng, n: rng.exponential(1.0, n), 1.0)
        yield f"paired mean {n}", paired_reward(n)
    yield "lognormal tokens 50", reward(50, lambda rng, n: rng.lognormal(4, 0.7, n), np.exp(4.245))
    yield "clustered mean 30 4", clustered_reward(30, 4)


@pytest.mark.parametrize("draw", [pytest.param(draw, id=name) for name, draw in cases()])
def test_intervals_cover_the_truth(draw: Draw) -> None:
    assert 0.93 <= coverage(draw) <= 0.97
