"""Countdown: reach a target by combining the numbers at hand, two at a time."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import add, floordiv, mul, sub
from typing import Literal, NamedTuple

from pydantic import Field

from ludus.client.env_client import EnvClient
from ludus.data.tool_schema import ToolCall
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import tool
from ludus.errors import ToolError
from ludus.protocol.types import Action, State, TextObservation

Operation = Literal["+", "-", "*", "/"]


class CountdownAction(Action):
    """Combine two of the numbers at hand; the result replaces both."""

    first: int = Field(description="The left number, which must be at hand.")
    operation: Operation = Field(description="What to do with the two numbers.")
    second: int = Field(description="The right number, which must be at hand.")


class CountdownObservation(TextObservation):
    """The target and the numbers at hand, in `text`."""


class CountdownEnv(EnvClient[CountdownAction, CountdownObservation, State]):
    """A typed client for a countdown server."""


_CALCULATE: dict[Operation, Callable[[int, int], int]] = {
    "+": add,
    "-": sub,
    "*": mul,
    "/": floordiv,
}
COUNTS = range(3, 7)
TARGETS = range(10, 1000)
MISSED_CREDIT = 0.5
"""Bound of the reward of an episode that does not make the target."""
_LARGE = (25, 50, 75, 100)
_SMALL = tuple(range(1, 11)) * 2

_RULES = """\
Make the target {target} from the numbers at hand.
Each turn, combine two of the numbers with +, -, * or /. The result replaces both of them.
Every result must be a positive whole number: 3 - 7, 5 - 5 and 7 / 2 are refused.
A refused turn is used up. You need not use all numbers.
The game ends when you make the target, when one number is left, or after the last turn.
Making the target scores 1. Otherwise you score less than {credit}: the closer the best of your \
results is to the target, compared to the given numbers, the more.
"""


class Countdown(ToolEnvironment):
    """Reach a target by combining the numbers at hand, two at a time.

    Tools:
        combine(first, operation, second): replaces two of the numbers by their sum (`+`),
            difference (`-`), product (`*`) or quotient (`/`), which must be a positive whole
            number. Anything else is refused with an error, and uses up a turn.
    Observation:
        The rules; then the last result, the numbers at hand, the target and the turns left.
    Reward:
        1.0 for the target. Without it, at the end, 0.5 times how much closer to the target the best
        result came than the given numbers: 1 - its distance / their smallest distance, at least 0.
        Its parts: `solved`, and `closeness`, that fraction (1.0 for the target).
    Episode end:
        The target is made, one number is left, or `max_turns` turns are used up.
    Task arguments:
        seed: picks the numbers and the target, which can be made, but not with one combination.
        count: how many numbers there are (4), from 3 to 6.
        max_turns: how many turns there are, with refused ones (2 * (count - 1)).
    """

    def reset(
        self, *, seed: int | None = None, count: int = 4, max_turns: int | None = None
    ) -> str:
        if count not in COUNTS:
            raise ValueError(f"count must be between {COUNTS[0]} and {COUNTS[-1]}, got {count}.")
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns must be positive, got {max_turns}.")
        self.numbers, self.target = _draw_task(random.Random(seed), count)
        self.count = count
        self.max_turns = self.turns_left = max_turns or 2 * (count - 1)
        self.start_distance = min(abs(number - self.target) for number in self.numbers)
        self.best_distance = self.start_distance
        rules = _RULES.format(target=self.target, credit=MISSED_CREDIT)
        return f"{rules}{self._render_state()}"

    @tool
    def combine(self, first: int, operation: Operation, second: int) -> str:
        """Combine two of the numbers at hand; the result replaces both.

        Args:
            first: The left number, which must be at hand.
            operation: What to do with the two numbers.
            second: The right number, which must be at hand.
        """
        self.turns_left -= 1
        if violation := self._rule_violation(first, operation, second):
            if self.turns_left == 0:
                self._finish()
            raise ToolError(f"{violation}\n{self._render_state()}")
        result = _CALCULATE[operation](first, second)
        self.numbers.remove(first)
        self.numbers.remove(second)
        self.numbers.append(result)
        self.best_distance = min(self.best_distance, abs(result - self.target))
        equation = f"{first} {operation} {second} = {result}"
        if result == self.target:
            return self.finish(1.0, f"{equation}\nYou made the target.", solved=1.0, closeness=1.0)
        if self.turns_left > 0 and len(self.numbers) > 1:
            return f"{equation}\n{self._render_state()}"
        return self._finish(f"{equation}\nThe game is over. The target was {self.target}.")

    def oracle(self, *, rng: random.Random | None = None, working: bool = False) -> ToolCall | None:
        """The shortest way to the target; if there is none, the way that comes closest.

        `rng` chooses among ways of the same length with the first combination, so that those after
        it keep to the plan. `working` is the rest of the plan.
        """
        if len(self.numbers) < 2 or self.turns_left == 0:
            return None
        is_first = len(self.numbers) == self.count
        plan = self._plan(rng.getrandbits(32) if rng and is_first else None)
        lines = (f"{s.first} {s.operation} {s.second} = {s.result}" for s in plan)
        return _build_call(plan[0], "\n".join(lines) if working else "")

    def _plan(self, order: int | None = None) -> Plan:
        at_hand = tuple(sorted(self.numbers, reverse=True))
        return best_plan(at_hand, self.target, self.turns_left, order)

    def random_action(self, rng: random.Random) -> ToolCall | None:
        """One of the legal combinations."""
        options = list(legal_combinations(tuple(sorted(self.numbers, reverse=True))))
        return _build_call(rng.choice(options)) if options else None

    def progress(self) -> float:
        """The fraction of the way, 1 for the target; 0 if it cannot be made any more.

        Before the first combination it is 1 / count, and grows by as much with every combination.
        """
        if self.best_distance == 0:
            return 1.0
        combined = self.count - len(self.numbers)
        if combined == 0:
            return 1 / self.count
        if len(self.numbers) < 2 or self.turns_left == 0:
            return 0.0
        makes_target = self._plan()[-1].result == self.target
        return (combined + 1) / self.count if makes_target else 0.0

    def _rule_violation(self, first: int, operation: Operation, second: int) -> str | None:
        """Which rule a combination breaks; None if it is legal."""
        for number in (first, second):
            if number not in self.numbers:
                return f"{number} is not at hand."
        if first == second and self.numbers.count(first) == 1:
            return f"{first} is at hand only once, and each number can be used once."
        if operation == "-" and first <= second:
            return f"{first} - {second} is not positive. Every result must be."
        if operation == "/" and first % second:
            return f"{first} / {second} is not a whole number. Every result must be."
        return None

    def _render_state(self) -> str:
        numbers = ", ".join(map(str, self.numbers))
        return f"Numbers at hand: {numbers}\nTarget: {self.target}\nTurns left: {self.turns_left}"

    def _finish(self, text: str = "") -> str:
        closeness = 1.0 - self.best_distance / self.start_distance
        return self.finish(MISSED_CREDIT * closeness, text, solved=0.0, closeness=closeness)


def _build_call(step: Combination, text: str = "") -> ToolCall:
    arguments = {"first": step.first, "operation": step.operation, "second": step.second}
    return ToolCall(name="combine", arguments=arguments, text=text)


def _draw_task(rng: random.Random, count: int) -> tuple[list[int], int]:
    """Numbers, and a target that random combinations of them made; not one alone."""
    while True:
        large = rng.randint(0, min(2, count - 2))
        numbers = rng.sample(_LARGE, large) + rng.sample(_SMALL, count - large)
        at_hand = tuple(sorted(numbers, reverse=True))
        within_one = {option.result for option in legal_combinations(at_hand)} | set(numbers)
        for _ in range(rng.randint(2, count - 1)):
            step = rng.choice(list(useful_combinations(at_hand)))
            at_hand = combine(at_hand, step)
        if step.result in TARGETS and step.result not in within_one:
            return numbers, step.result


class Combination(NamedTuple):
    """Two numbers, what is done with them, and the result."""

    first: int
    operation: Operation
    second: int
    result: int


Plan = tuple[Combination, ...]


@lru_cache(maxsize=4096)
def best_plan(numbers: tuple[int, ...], target: int, turns: int, order: int | None = None) -> Plan:
    """The shortest way to the target, with at most `turns` combinations.

    If there is none, the way to the result that is closest to the target. `numbers` are at least
    two, in descending order. `order` is a seed that picks one of several such ways.
    """
    options = list(useful_combinations(numbers))
    if order is not None:
        random.Random(order).shuffle(options)
    for depth in range(1, min(turns, len(numbers) - 1) + 1):
        distance, plan = _closest_plan(options, numbers, target, depth, {})
        if distance == 0:
            break
    return plan


def _closest_plan(
    options: Iterable[Combination],
    numbers: tuple[int, ...],
    target: int,
    depth: int,
    visited: dict[tuple[int, ...], tuple[int, Plan]],
) -> tuple[int, Plan]:
    """The distance to the target of the closest result of `depth` combinations, and the way to it.

    `visited` holds the same for sets of numbers: at one depth of the search, a set always has the
    same number of steps left.
    """
    closest: tuple[int, Plan] = (sys.maxsize, ())
    plan: Plan
    for option in options:
        distance, plan = abs(option.result - target), (option,)
        if distance and depth > 1 and len(numbers) > 2:
            rest = combine(numbers, option)
            if (after := visited.get(rest)) is None:
                further = useful_combinations(rest)
                after = _closest_plan(further, rest, target, depth - 1, visited)
                visited[rest] = after
            if after[0] < distance:
                distance, plan = after[0], (option, *after[1])
        if distance < closest[0]:
            closest = distance, plan
            if distance == 0:
                break
    return closest


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
