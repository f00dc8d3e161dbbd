"""Tasks on lists."""

from __future__ import annotations

import random
from typing import Any

from ludus.envs.python.tasks.draws import integers, words
from ludus.envs.python.tasks.task import task


@task(
    lambda rng: (integers(rng, 2), rng.randint(-12, 12)),
    [([], 3), ([1], 5), ([1, 2, 3], 0), ([1, 2, 3], 7), ([1, 2, 3], -1)],
)
def rotate(items: list[int], steps: int) -> list[int]:
    """Move every item `steps` places to the right; those that leave the end come in at the front.

    With negative `steps` they move to the left. [1, 2, 3] rotated by 1 is [3, 1, 2].
    """
    if not items:
        return []
    steps %= len(items)
    return items[len(items) - steps :] + items[: len(items) - steps]


@task(
    lambda rng: (integers(rng, 3, 10, low=0, high=6),),
    [([],), ([1, 1, 1],), ([3, 1, 3, 2, 1],)],
)
def remove_duplicates(items: list[int]) -> list[int]:
    """Keep the first of equal items and remove the others; the order stays."""
    return list(dict.fromkeys(items))


@task(
    lambda rng: (integers(rng, 2, 8, low=-5, high=9),),
    [([],), ([4],), ([4, 4],), ([-1, -2],), ([5, 5, 3],)],
)
def second_largest(numbers: list[int]) -> int | None:
    """Return the largest number that is smaller than the largest one; None if there is none."""
    distinct = sorted(set(numbers))
    return distinct[-2] if len(distinct) > 1 else None


@task(
    lambda rng: (sorted(integers(rng, 0, 6)), sorted(integers(rng, 0, 6))),
    [([], []), ([1], []), ([1, 1], [1])],
)
def merge_sorted(first: list[int], second: list[int]) -> list[int]:
    """Merge two ascending lists into one ascending list that has all their items."""
    return sorted(first + second)


@task(
    lambda rng: (
        numbers := integers(rng, 2, 8),
        sum(rng.sample(numbers, 2)) + rng.choice([0, 0, 1]),
    ),
    [([], 0), ([5], 10), ([3, 3], 6), ([1, 2, 3, 4], 5), ([0, -4, 4, 0], 0)],
)
def two_sum(numbers: list[int], target: int) -> list[int]:
    """Find two different places i < j whose numbers add up to `target`, and return [i, j].

    If there are several, take the one with the smallest i, and among these the one with the
    smallest j. If there is none, return [].
    """
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            if numbers[i] + numbers[j] == target:
                return [i, j]
    return []


@task(lambda rng: (integers(rng, 2, 9),), [([],), ([-3],), ([5, 1, 1],)])
def running_maximum(numbers: list[int]) -> list[int]:
    """Return, for every place, the largest number up to and including that place."""
    from itertools import accumulate

    return list(accumulate(numbers, max))


@task(lambda rng: (words(rng, 1, 9), rng.randint(1, 4)), [([], 2), (["a"], 3), (["a", "b"], 1)])
def chunk(items: list[str], size: int) -> list[list[str]]:
    """Cut a list into pieces of `size` items, in order. The last piece may be shorter."""
    return [items[i : i + size] for i in range(0, len(items), size)]


@task(
    lambda rng: (integers(rng, 3, 12, low=0, high=9),),
    [([],), ([7],), ([3, 2, 1],), ([1, 2, 2, 3, 4],), ([1, 2, 3, 4],)],
)
def longest_increasing_run(numbers: list[int]) -> int:
    """Return the length of the longest stretch of neighbours in which every number is larger than
    the one before it. A single number is a stretch of length 1; the empty list has 0."""
    longest = current = 0
    for i, number in enumerate(numbers):
        current = current + 1 if i and number > numbers[i - 1] else 1
        longest = max(longest, current)
    return longest


@task(
    lambda rng: (
        ([rng.choice([4, 4, 4, rng.randint(0, 9)]) for _ in range(rng.randint(1, 7))],)
        if rng.random() < 0.5
        else (integers(rng, 2, 6, low=0, high=2),)
    ),
    [([],), ([3],), ([1, 2],), ([2, 1, 2],), ([1, 1, 2, 2],)],
)
def majority(votes: list[int]) -> int | None:
    """Return the number that makes up more than half of the list; None if there is none."""
    for candidate in set(votes):
        if 2 * votes.count(candidate) > len(votes):
            return candidate
    return None


def _draw_nested(rng: random.Random, depth: int = 3) -> list[Any]:
    return [
        _draw_nested(rng, depth - 1) if depth and rng.random() < 0.4 else rng.randint(0, 9)
        for _ in range(rng.randint(0 if depth < 3 else 2, 4))
    ]


@task(lambda rng: (_draw_nested(rng),), [([],), ([[]],), ([[[1]], 2],)])
def flatten(items: list[object]) -> list[int]:
    """Write out the numbers of a nested list in one flat list, from left to right.

    Its items are numbers and lists, which may be nested to any depth, and may be empty.
    """
    flat: list[int] = []
    for item in items:
        if isinstance(item, list):
            flat += flatten(item)
        elif isinstance(item, int):
            flat.append(item)
    return flat


@task(
    lambda rng: (integers(rng, 2, 8, low=0, high=15),), [([],), ([4],), ([3, 1, 2],), ([5, 1, 5],)]
)
def missing_numbers(numbers: list[int]) -> list[int]:
    """List the integers between the smallest and the largest number that are not in the list,
    in ascending order."""
    if not numbers:
        return []
    present = set(numbers)
    return [number for number in range(min(numbers), max(numbers)) if number not in present]
