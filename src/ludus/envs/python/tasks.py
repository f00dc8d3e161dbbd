"""The tasks that ship: small functions, each with a solution and inputs to test others with.

A solution refers to nothing outside itself. Its signature and docstring are the statement.
"""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import Any, Literal, TypeVar

Pool = Literal["all", "train", "test"]
Arguments = tuple[object, ...]
DrawArguments = Callable[[random.Random], Arguments]
F = TypeVar("F", bound=Callable[..., Any])

NUM_EXAMPLES = 3
NUM_TESTS = 12
_MAX_DRAWS = 1000


@dataclass(frozen=True)
class Case:
    """Arguments, and what the function has to return for them: a JSON value."""

    arguments: Arguments
    expected: object


@dataclass(frozen=True)
class Task:
    """A function to write."""

    solution: Callable[..., object]
    draw: DrawArguments
    edges: Sequence[Arguments]
    """Inputs that every set of tests has."""

    @property
    def name(self) -> str:
        return self.solution.__name__

    @cached_property
    def statement(self) -> str:
        """The signature and the docstring, as code."""
        lines, docstring = self._source()
        return "\n".join([*lines[: docstring.end_lineno], "    ..."])

    @cached_property
    def solution_code(self) -> str:
        """The code of the solution, without the docstring."""
        lines, docstring = self._source()
        return "\n".join([*lines[: docstring.lineno - 1], *lines[docstring.end_lineno :]]) + "\n"

    def _source(self) -> tuple[list[str], ast.stmt]:
        """The lines of the solution without its decorator, and where its docstring is in them."""
        lines = inspect.getsource(self.solution).splitlines()
        lines = lines[next(i for i, line in enumerate(lines) if line.startswith("def ")) :]
        (definition,) = ast.parse("\n".join(lines)).body
        assert isinstance(definition, ast.FunctionDef)
        return lines, definition.body[0]

    def draw_tests(self, rng: random.Random) -> tuple[list[Case], list[Case]]:
        """Examples to show and tests to hide, without an input in common."""
        distinct = {repr(arguments): arguments for arguments in self.edges}
        for _ in range(_MAX_DRAWS):
            if len(distinct) == NUM_TESTS + NUM_EXAMPLES:
                break
            arguments = self.draw(rng)
            distinct.setdefault(repr(arguments), arguments)
        cases = [Case(arguments, self.solution(*arguments)) for arguments in distinct.values()]
        tests, drawn = cases[: len(self.edges)], cases[len(self.edges) :]
        # Examples with different results say the most; of a function that returns True or False
        # there are only two.
        by_result = {repr(case.expected): case for case in reversed(drawn)}
        examples = list(by_result.values())[:NUM_EXAMPLES]
        others = [case for case in drawn if case not in examples]
        missing = NUM_EXAMPLES - len(examples)
        return examples + others[:missing], tests + others[missing:]


TASKS: dict[str, Task] = {}


def task(draw: DrawArguments, edges: Sequence[Arguments]) -> Callable[[F], F]:
    """Make a task of the function that solves it, which may not change its arguments."""

    def register(function: F) -> F:
        TASKS[function.__name__] = Task(function, draw, edges)
        return function

    return register


_WORD_LIST = """
amber apple barn birch cedar civic cloud coral delta ember fern flint fox grove harbor heron
inlet island jade kayak kettle lemon level lily maple meadow mint noon oak olive orbit otter
pearl pine plum quartz radar raven reed river robin rotor sage seed spruce stone tide tulip
violet willow wren yarrow
"""


def words(rng: random.Random, fewest: int, most: int) -> list[str]:
    return rng.choices(_WORD_LIST.split(), k=rng.randint(fewest, most))


def sentence(rng: random.Random, fewest: int = 2, most: int = 7) -> str:
    """Words between single blanks, some of them capitalized."""
    return " ".join(
        each.capitalize() if rng.random() < 0.3 else each for each in words(rng, fewest, most)
    )


def letters(rng: random.Random, fewest: int, most: int, *, of: str = ascii_lowercase) -> str:
    return "".join(rng.choices(of, k=rng.randint(fewest, most)))


def integers(
    rng: random.Random, fewest: int, most: int = 8, *, low: int = -9, high: int = 20
) -> list[int]:
    return [rng.randint(low, high) for _ in range(rng.randint(fewest, most))]


@task(
    lambda rng: (
        rng.choice(["Noon", "Kayak", "Rotor, rotor!", "Was it a car", "No lemon, no melon"])
        if rng.random() < 0.3
        else (half := letters(rng, 1, 5, of="abcXY1")) + rng.choice(["", " "]) + half[::-1]
        if rng.random() < 0.4
        else letters(rng, 2, 7, of="abAB ,"),
    ),
    [("",), ("?!",), ("A man, a plan, a canal: Panama",), ("10 01",), ("ab",)],
)
def is_palindrome(text: str) -> bool:
    """Tell whether the text reads the same forwards and backwards.

    Only letters and digits count, and upper and lower case are the same.
    A text without any letter or digit is a palindrome.
    """
    kept = [symbol.lower() for symbol in text if symbol.isalnum()]
    return kept == kept[::-1]


@task(
    lambda rng: (sentence(rng) + rng.choice(["", "!", " 42"]), rng.randint(-30, 30)),
    [("", 3), ("xyz XYZ", 3), ("abc", -1), ("Hello, World!", 26)],
)
def caesar_shift(text: str, shift: int) -> str:
    """Replace every letter by the one that comes `shift` places later in the alphabet.

    After z comes a again. The case of a letter stays, and other symbols stay as they are.
    `shift` may be negative, and larger than 26.
    """
    shifted = []
    for symbol in text:
        if symbol.isascii() and symbol.isalpha():
            first = ord("a") if symbol.islower() else ord("A")
            symbol = chr(first + (ord(symbol) - first + shift) % 26)
        shifted.append(symbol)
    return "".join(shifted)


@task(
    lambda rng: (
        "".join(f"{letters(rng, 1, 1)}{rng.randint(1, 13)}" for _ in range(rng.randint(1, 5))),
    ),
    [("",), ("z10",), ("a1a1",)],
)
def run_length_decode(code: str) -> str:
    """Write out a text in which every letter is followed by how often to write it.

    For example, "a3b12" becomes "aaabbbbbbbbbbbb".
    """
    import re

    return "".join(letter * int(count) for letter, count in re.findall(r"([a-z])(\d+)", code))


@task(lambda rng: (sentence(rng, 3, 9),), [("",), ("The the THE",)])
def count_words(text: str) -> dict[str, int]:
    """Count how often each word occurs. Words are separated by blanks.

    Upper and lower case are the same; the words in the result are in lower case.
    """
    counts: dict[str, int] = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts


@task(lambda rng: (rng.randint(2, 5000),), [(1,), (2,), (1024,), (999_983,), (360_360,)])
def prime_factors(number: int) -> list[int]:
    """List the prime factors of a positive number, from small to large.

    A factor is listed as often as it divides the number: 12 has [2, 2, 3]. The number 1 has none.
    """
    factors = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return [*factors, number] if number > 1 else factors


@task(lambda rng: (rng.randint(-99_999, 99_999),), [(0,), (-305,), (10**20 - 1,)])
def digit_sum(number: int) -> int:
    """Add up the decimal digits of a number; its sign does not matter."""
    return sum(int(digit) for digit in str(abs(number)))


@task(
    lambda rng: (rng.randint(0, 5000), rng.randint(2, 16)),
    [(0, 2), (255, 16), (-10, 2), (7, 7)],
)
def to_base(number: int, base: int) -> str:
    """Write an integer in a base from 2 to 16, with the digits 0 to 9 and a to f.

    A negative number has a minus sign before it.
    """
    if number < 0:
        return "-" + to_base(-number, base)
    digits = "0123456789abcdef"[number % base]
    return to_base(number // base, base) + digits if number >= base else digits


@task(lambda rng: (rng.randint(1, 3999),), [(1,), (4,), (944,), (3999,), (2026,)])
def roman_numeral(number: int) -> str:
    """Write a number from 1 to 3999 as a Roman numeral, such as "MCMXCIV" for 1994."""
    values = [1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1]
    symbols = ["M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"]
    numeral = ""
    for value, symbol in zip(values, symbols, strict=True):
        numeral += symbol * (number // value)
        number %= value
    return numeral


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


@task(lambda rng: (words(rng, 1, 9), rng.randint(1, 4)), [([], 2), (["a"], 3), (["a", "b"], 1)])
def chunk(items: list[str], size: int) -> list[list[str]]:
    """Cut a list into pieces of `size` items, in order. The last piece may be shorter."""
    return [items[i : i + size] for i in range(0, len(items), size)]


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


@task(
    lambda rng: (
        [letters(rng, columns, columns, of="...#") for columns in [rng.randint(2, 6)] * 4],
    ),
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


_NAMES = tuple(TASKS)
POOLS: dict[Pool, tuple[str, ...]] = {
    "all": _NAMES,
    # Every fifth task is held out, so that each subject has some on both sides.
    "train": tuple(name for i, name in enumerate(_NAMES) if i % 5 != 4),
    "test": _NAMES[4::5],
}
"""Names of tasks; the two pools `train` and `test` have none in common."""
