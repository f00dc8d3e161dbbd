"""What a task is: a function that solves it, and inputs to test other functions with."""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import Any, NamedTuple, TypeVar

Arguments = tuple[Any, ...]
DrawArguments = Callable[[random.Random], Arguments]
F = TypeVar("F", bound=Callable[..., Any])

NUM_EXAMPLES = 3
NUM_TESTS = 12
_MAX_DRAWS = 1000


@dataclass(frozen=True)
class Case:
    """Arguments, and what the function has to return for them: a JSON value."""

    arguments: Arguments
    expected: Any


@dataclass(frozen=True)
class Task:
    """A function to write. Its solution is a function of this package, and so is its statement:
    the signature and the docstring."""

    solution: Callable[..., Any]
    draw: DrawArguments
    edges: tuple[Arguments, ...]
    """Inputs that every set of tests has."""

    @property
    def name(self) -> str:
        return self.solution.__name__

    @property
    def statement(self) -> str:
        """The signature and the docstring, as code."""
        return "\n".join([*self._source.signature, *self._source.docstring, "    ..."])

    @property
    def solution_code(self) -> str:
        """The code of the solution, without the docstring."""
        return "\n".join([*self._source.signature, *self._source.body]) + "\n"

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

    @cached_property
    def _source(self) -> _Source:
        text = inspect.getsource(self.solution)
        lines = text.splitlines()
        (definition,) = ast.parse(text).body
        assert isinstance(definition, ast.FunctionDef)
        docstring = definition.body[0]
        assert docstring.end_lineno is not None
        return _Source(
            signature=lines[definition.lineno - 1 : docstring.lineno - 1],
            docstring=lines[docstring.lineno - 1 : docstring.end_lineno],
            body=lines[docstring.end_lineno :],
        )


class _Source(NamedTuple):
    """The lines of a solution, without its decorator."""

    signature: list[str]
    docstring: list[str]
    body: list[str]


def task(draw: DrawArguments, edges: Iterable[Arguments] = ()) -> Callable[[F], F]:
    """Make a task of the function that solves it.

    The function is typed, refers to nothing outside itself, does not change its arguments, and
    returns a JSON value. Its docstring says what to do, also in the corner cases that `edges` has.
    """

    def mark(function: F) -> F:
        function.__dict__["task"] = Task(function, draw, tuple(edges))
        return function

    return mark


def collect_tasks(modules: Iterable[Any]) -> dict[str, Task]:
    """The tasks of modules, by name, in the order of their definition."""
    return {
        value.__name__: value.task
        for module in modules
        for value in vars(module).values()
        if isinstance(getattr(value, "task", None), Task)
    }


_WORD_LIST = """
amber apple barn birch cedar civic cloud coral delta ember fern flint fox grove harbor heron
inlet island jade kayak kettle lemon level lily maple meadow mint noon oak olive orbit otter
pearl pine plum quartz radar raven reed river robin rotor sage seed spruce stone tide tulip
violet willow wren yarrow
"""
_WORDS = _WORD_LIST.split()


def word(rng: random.Random) -> str:
    return rng.choice(_WORDS)


def words(rng: random.Random, fewest: int = 1, most: int = 6) -> list[str]:
    return [word(rng) for _ in range(rng.randint(fewest, most))]


def sentence(rng: random.Random, fewest: int = 2, most: int = 7) -> str:
    """Words between single blanks, some of them capitalized."""
    return " ".join(
        each.capitalize() if rng.random() < 0.3 else each for each in words(rng, fewest, most)
    )


def letters(
    rng: random.Random, fewest: int = 1, most: int = 8, *, of: str = ascii_lowercase
) -> str:
    return "".join(rng.choice(of) for _ in range(rng.randint(fewest, most)))


def integers(
    rng: random.Random, fewest: int = 1, most: int = 8, *, low: int = -9, high: int = 20
) -> list[int]:
    return [rng.randint(low, high) for _ in range(rng.randint(fewest, most))]


def matrix(rng: random.Random, rows: int, columns: int, *, high: int = 20) -> list[list[int]]:
    return [[rng.randint(0, high) for _ in range(columns)] for _ in range(rows)]


def grid(rng: random.Random, *, of: str, low: int = 2, high: int = 6) -> list[str]:
    """Rows of the same length, of random symbols."""
    columns = rng.randint(low, high)
    return ["".join(rng.choice(of) for _ in range(columns)) for _ in range(rng.randint(low, high))]
