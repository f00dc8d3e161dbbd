"""Searches all ways to combine numbers, for the shortest one that makes a target."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from ludus.envs.countdown.models import Operation


class Combination(NamedTuple):
    """Two numbers, what is done with them, and the result."""

    first: int
    operation: Operation
    second: int
    result: int


def best_combination(
    numbers: tuple[int, ...], target: int, turns: int, rng: random.Random | None = None
) -> Combination:
    """The first step of the shortest way to the target, with at most `turns` combinations.

    Where there is no such way, the first step to the result that is closest to the target.
    `numbers` are at least two, in descending order. `rng` draws one of several such steps.
    """
    if rng is None:
        return _first_combination(numbers, target, turns)
    options = list(useful_combinations(numbers))
    rng.shuffle(options)
    return _search(options, numbers, target, turns)


@lru_cache(maxsize=4096)
def _first_combination(numbers: tuple[int, ...], target: int, turns: int) -> Combination:
    return _search(list(useful_combinations(numbers)), numbers, target, turns)


def _search(
    options: list[Combination], numbers: tuple[int, ...], target: int, turns: int
) -> Combination:
    for depth in range(1, min(turns, len(numbers) - 1) + 1):
        visited: dict[tuple[int, ...], int] = {}
        distances = []
        for option in options:
            distances.append(_closest_distance(numbers, option, target, depth, visited))
            if distances[-1] == 0:
                return option
    return options[distances.index(min(distances))]


def plan_from(
    numbers: tuple[int, ...], step: Combination, target: int, turns: int
) -> list[Combination]:
    """A step and the best ones after it, to the result that is closest to the target."""
    plan = [step]
    while plan[-1].result != target and turns > len(plan) and len(numbers) > 2:
        numbers = combine(numbers, plan[-1])
        plan.append(best_combination(numbers, target, turns - len(plan)))
    distances = [abs(each.result - target) for each in plan]
    return plan[: distances.index(min(distances)) + 1]


def _closest_distance(
    numbers: tuple[int, ...],
    step: Combination,
    target: int,
    depth: int,
    visited: dict[tuple[int, ...], int],
) -> int:
    """The distance to the target of the closest result of this step and of those after it.

    `depth` counts this step. `visited` holds the distances of sets of numbers: at one depth of the
    search, a set always has the same number of steps left.
    """
    distance = abs(step.result - target)
    if depth == 1 or distance == 0 or len(numbers) == 2:
        return distance
    rest = combine(numbers, step)
    if (after := visited.get(rest)) is None:
        after = sys.maxsize
        for option in useful_combinations(rest):
            after = min(after, _closest_distance(rest, option, target, depth - 1, visited))
            if after == 0:
                break
        visited[rest] = after
    return min(distance, after)


def combine(numbers: tuple[int, ...], step: Combination) -> tuple[int, ...]:
    """The numbers after a step, in descending order."""
    rest = list(numbers)
    rest.remove(step.first)
    rest.remove(step.second)
    rest.append(step.result)
    rest.sort(reverse=True)
    return tuple(rest)


def legal_combinations(numbers: tuple[int, ...]) -> Iterator[Combination]:
    """All combinations with a positive whole result, each pair of values once."""
    seen: set[tuple[int, int]] = set()
    for place, first in enumerate(numbers):
        for second in numbers[place + 1 :]:
            if (first, second) in seen:
                continue
            seen.add((first, second))
            yield Combination(first, "+", second, first + second)
            yield Combination(first, "*", second, first * second)
            if first > second:
                yield Combination(first, "-", second, first - second)
            if first % second == 0:
                yield Combination(first, "/", second, first // second)


def useful_combinations(numbers: tuple[int, ...]) -> Iterator[Combination]:
    """The legal combinations whose result is neither of the two numbers."""
    return (
        option
        for option in legal_combinations(numbers)
        if option.result not in (option.first, option.second)
    )
