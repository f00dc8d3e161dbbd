"""Tasks whose naive solution is too slow or not optimal."""

from __future__ import annotations

from ludus.envs.python.tasks.draws import integers, letters, word
from ludus.envs.python.tasks.task import task


@task(
    lambda rng: (integers(rng, 2, 10, low=-9, high=9),),
    [([5],), ([-3, -1, -2],), ([1, -2, 3, 4, -1],), ([2, 2, -10, 3],)],
)
def max_subarray_sum(numbers: list[int]) -> int:
    """Return the largest sum that neighbours in the list can have.

    At least one number has to be taken, and the list is not empty.
    """
    best = current = numbers[0]
    for number in numbers[1:]:
        current = max(number, current + number)
        best = max(best, current)
    return best


@task(
    lambda rng: (letters(rng, 2, 7, of="abcd"), letters(rng, 2, 7, of="abcd")),
    [("", ""), ("", "abc"), ("kitten", "sitting"), ("same", "same"), ("intention", "execution")],
)
def edit_distance(first: str, second: str) -> int:
    """Count the fewest changes that turn the first text into the second.

    A change inserts, removes or replaces one letter.
    """
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, start=1):
        previous, row = row, [i]
        for j, other in enumerate(second, start=1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (letter != other)))
    return row[-1]


@task(
    lambda rng: (letters(rng, 3, 9, of="abcd"), letters(rng, 3, 9, of="abcd")),
    [("", "a"), ("abc", "abc"), ("abc", "def"), ("aggtab", "gxtxayb"), ("ab" * 20, "ba" * 20)],
)
def common_subsequence_length(first: str, second: str) -> int:
    """Return the length of the longest text that can be made from either text by removing letters.

    The texts may have several dozen letters.
    """
    row = [0] * (len(second) + 1)
    for letter in first:
        previous, row = row, [0]
        for j, other in enumerate(second):
            row.append(previous[j] + 1 if letter == other else max(previous[j + 1], row[-1]))
    return row[-1]


@task(
    lambda rng: (rng.randint(1, 60), sorted(rng.sample(range(1, 16), rng.randint(1, 4)))),
    [(0, [5]), (3, [2]), (6, [1, 3, 4]), (11, [1, 2, 5]), (999, [7, 11, 50]), (4, [])],
)
def fewest_coins(amount: int, coins: list[int]) -> int:
    """Return the fewest coins that make up an amount; there are enough coins of every kind.

    Return -1 if the amount cannot be made. An amount of 0 needs no coins.
    """
    fewest = [0]
    for total in range(1, amount + 1):
        options = [fewest[total - coin] for coin in coins if coin <= total]
        possible = [count for count in options if count >= 0]
        fewest.append(min(possible) + 1 if possible else -1)
    return fewest[amount]


@task(
    lambda rng: (integers(rng, 3, 12, low=0, high=20),),
    [
        ([],),
        ([4],),
        ([3, 2, 1],),
        ([1, 1, 1],),
        ([10, 9, 2, 5, 3, 7, 101, 18],),
        (list(range(40)),),
    ],
)
def increasing_subsequence_length(numbers: list[int]) -> int:
    """Return how many numbers can be kept, at most, if the kept ones must grow from left to right.

    Every kept number must be larger than the kept one before it. The numbers need not be
    neighbours. The list may have several dozen numbers.
    """
    from bisect import bisect_left

    smallest_last: list[int] = []
    for number in numbers:
        place = bisect_left(smallest_last, number)
        smallest_last[place : place + 1] = [number]
    return len(smallest_last)


@task(lambda rng: (rng.randint(3, 60),), [(0,), (1,), (2,), (3,), (100,)])
def climb_stairs(steps: int) -> int:
    """Count the ways to climb stairs with this many steps, taking 1, 2 or 3 steps at a time.

    There is one way to climb none. There may be a hundred steps.
    """
    ways = [1, 1, 2]
    while len(ways) <= steps:
        ways.append(sum(ways[-3:]))
    return ways[steps]


@task(
    lambda rng: (
        [[weight, 3 * weight + rng.randint(0, 9)] for weight in integers(rng, 2, 6, low=1, high=8)],
        rng.randint(3, 20),
    ),
    [([], 10), ([[5, 10]], 4), ([[5, 10]], 5), ([[3, 5], [3, 5], [4, 8]], 6)],
)
def knapsack(items: list[list[int]], capacity: int) -> int:
    """Return the largest value that can be carried.

    Each item is [weight, value] and may be taken once. Together the items may weigh `capacity` at
    most.
    """
    best = [0] * (capacity + 1)
    for weight, value in items:
        for room in range(capacity, weight - 1, -1):
            best[room] = max(best[room], best[room - weight] + value)
    return best[capacity]


@task(
    lambda rng: (
        (text := "".join(word(rng) for _ in range(rng.randint(1, 2))))
        + text[::-1][: rng.randint(0, 4)],
    ),
    [("",), ("a",), ("ab",), ("babad",), ("forgeeksskeegfor",)],
)
def longest_palindrome(text: str) -> str:
    """Find the longest part of the text that reads the same forwards and backwards.

    If there are several, return the one that begins first.
    """
    for length in range(len(text), 0, -1):
        for start in range(len(text) - length + 1):
            part = text[start : start + length]
            if part == part[::-1]:
                return part
    return ""
