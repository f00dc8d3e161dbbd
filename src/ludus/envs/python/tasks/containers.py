"""Tasks on lists, dictionaries, matrices, grids and graphs."""

from __future__ import annotations

import random
from typing import Any

from ludus.envs.python.tasks.task import grid, integers, letters, matrix, sentence, task, words


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


@task(
    lambda rng: (matrix(rng, rng.randint(1, 4), rng.randint(1, 4)),),
    [([],), ([[1]],), ([[1, 2, 3]],), ([[1], [2]],)],
)
def transpose(rows: list[list[int]]) -> list[list[int]]:
    """Turn the rows of a matrix into columns. All rows have the same length."""
    return [list(column) for column in zip(*rows, strict=True)]


@task(
    lambda rng: (matrix(rng, rng.randint(1, 4), rng.randint(1, 5)),),
    [([],), ([[1]],), ([[1, 2, 3]],), ([[1], [2], [3]],), ([[1, 2, 3], [4, 5, 6], [7, 8, 9]],)],
)
def spiral_order(rows: list[list[int]]) -> list[int]:
    """List the numbers of a matrix in a spiral.

    Begin in the upper left corner, go right, and turn clockwise wherever the edge or a number that
    was listed before is reached, until all are listed.
    """
    spiral: list[int] = []
    rest = [list(row) for row in rows]
    while rest:
        spiral += rest[0]
        rest = [list(column) for column in zip(*rest[1:], strict=True)][::-1]
    return spiral


@task(lambda rng: (sentence(rng, 3, 9),), [("",), ("The the THE",)])
def count_words(text: str) -> dict[str, int]:
    """Count how often each word occurs. Words are separated by blanks.

    Upper and lower case are the same; the words in the result are in lower case.
    """
    counts: dict[str, int] = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts


@task(lambda rng: (words(rng, 2, 8),), [([],), (["a", "ab", "b", "a"],)])
def group_by_first_letter(words: list[str]) -> dict[str, list[str]]:
    """Group words by their first letter: a dictionary from letters to lists of words.

    In each group the words keep their order, and equal words are all kept. No word is empty.
    """
    groups: dict[str, list[str]] = {}
    for word in words:
        groups.setdefault(word[0], []).append(word)
    return groups


@task(
    lambda rng: (
        [
            [start := rng.randint(0, 20), start + rng.randint(0, 6)]
            for _ in range(rng.randint(2, 6))
        ],
    ),
    [([],), ([[1, 2], [2, 3]],), ([[5, 6], [1, 9]],), ([[1, 2], [3, 4]],)],
)
def merge_intervals(intervals: list[list[int]]) -> list[list[int]]:
    """Merge intervals [start, end] that have a point in common, and sort them by their start.

    [1, 2] and [2, 3] have the point 2 in common; [1, 2] and [3, 4] have none.
    """
    merged: list[list[int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def _draw_square(rng: random.Random) -> list[list[int]]:
    """A magic square, or one in which a number or the order of a row is changed."""
    factor, shift = rng.randint(1, 5), rng.randint(-5, 5)
    square = [[factor * n + shift for n in row] for row in ([2, 7, 6], [9, 5, 1], [4, 3, 8])]
    match rng.randrange(4):
        case 0:
            square[rng.randrange(3)][rng.randrange(3)] += rng.randint(1, 9)
        case 1:
            square[rng.randrange(3)].reverse()
    return square


@task(
    lambda rng: (_draw_square(rng),),
    [([[5]],), ([[1, 2], [2, 1]],), ([[1, 2, 3], [3, 1, 2], [2, 3, 1]],), ([[0, 0], [0, 0]],)],
)
def is_magic_square(rows: list[list[int]]) -> bool:
    """Tell whether a square of numbers is magic: every row, every column and both diagonals have
    the same sum."""
    size = range(len(rows))
    sums = {sum(row) for row in rows} | {sum(row[i] for row in rows) for i in size}
    sums |= {sum(rows[i][i] for i in size), sum(rows[i][-1 - i] for i in size)}
    return len(sums) == 1


@task(
    lambda rng: (grid(rng, of="...#", low=2, high=6),),
    [([".#", "#."],), (["."],), (["#"],), (["..", ".#"],), (["...", ".#.", "..."],), (["....."],)],
)
def shortest_path(rows: list[str]) -> int:
    """Count the steps from the upper left to the lower right corner of a grid.

    A step goes up, down, left or right to a free field "."; "#" is a wall. Return the smallest
    number of steps, and -1 if the corner cannot be reached, or if either corner is a wall.
    """
    goal = (len(rows) - 1, len(rows[0]) - 1)
    distances = {(0, 0): 0} if rows[0][0] == "." else {}
    queue = list(distances)
    for row, column in queue:
        for near in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            inside = 0 <= near[0] <= goal[0] and 0 <= near[1] <= goal[1]
            if inside and rows[near[0]][near[1]] == "." and near not in distances:
                distances[near] = distances[row, column] + 1
                queue.append(near)
    return distances.get(goal, -1)


@task(
    lambda rng: (grid(rng, of="..#", low=3, high=7),),
    [([],), (["."],), (["#"],), (["#.", ".#"],), (["##", "##"],), (["#.#", "#.#", "###"],)],
)
def count_islands(rows: list[str]) -> int:
    """Count the islands on a map, where "#" is land and "." is water.

    Fields of land that touch at a side, not only at a corner, belong to the same island.
    """
    land = {(i, j) for i, row in enumerate(rows) for j, field in enumerate(row) if field == "#"}
    islands = 0
    while land:
        islands += 1
        reached = [land.pop()]
        for i, j in reached:
            near = {(i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)} & land
            land -= near
            reached += near
    return islands


@task(
    lambda rng: (
        [
            pair if rng.random() < 0.85 else pair[::-1]
            for pair in (sorted(rng.sample("abcdef", 2)) for _ in range(rng.randint(2, 6)))
        ],
    ),
    [([],), ([["b", "a"]],), ([["a", "b"], ["b", "a"]],), ([["a", "d"], ["c", "b"], ["d", "b"]],)],
)
def order_tasks(pairs: list[list[str]]) -> list[str]:
    """Put tasks in an order in which, for every pair [x, y], x comes before y.

    The tasks are the letters in the pairs. Wherever there is a choice, the task that comes first in
    the alphabet is next. If there is no such order, return [].
    """
    waiting = {task for pair in pairs for task in pair}
    order: list[str] = []
    while waiting:
        blocked = {after for before, after in pairs if before in waiting}
        ready = sorted(waiting - blocked)
        if not ready:
            return []
        order.append(ready[0])
        waiting.remove(ready[0])
    return order


@task(
    lambda rng: (
        {letters(rng, 1, 2, of="abcd"): rng.randint(1, 9) for _ in range(rng.randint(1, 4))},
        {letters(rng, 1, 2, of="abcd"): rng.randint(-9, 9) for _ in range(rng.randint(1, 4))},
    ),
    [({}, {}), ({"a": 1}, {"a": -1}), ({"a": 2}, {"b": 3})],
)
def add_inventories(stock: dict[str, int], changes: dict[str, int]) -> dict[str, int]:
    """Add the changes to the stock, item by item, and leave out items of which 0 or fewer are left.

    An item that is only in one of the two counts as 0 in the other.
    """
    totals = {item: stock.get(item, 0) + changes.get(item, 0) for item in {**stock, **changes}}
    return {item: total for item, total in totals.items() if total > 0}
