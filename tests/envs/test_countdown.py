from __future__ import annotations

import random
from itertools import permutations
from typing import Any

import pytest

from ludus.envs.countdown import Countdown, CountdownAction, Operation
from ludus.protocol.types import TextObservation

Call = tuple[int, Operation, int]


def game(seed: int = 0, **task: Any) -> Countdown:
    environment = Countdown()
    environment.reset(seed=seed, **task)
    return environment


def game_of(numbers: list[int], target: int, turns: int = 6) -> Countdown:
    environment = game(max_turns=turns)
    environment.numbers, environment.target = list(numbers), target
    distance = min(abs(number - target) for number in numbers)
    environment.start_distance = environment.best_distance = distance
    return environment


def combine(
    environment: Countdown, first: int, operation: Operation, second: int
) -> TextObservation:
    seen = environment.step(CountdownAction(first=first, operation=operation, second=second))
    assert isinstance(seen, TextObservation)
    return seen


def play_oracle(environment: Countdown) -> TextObservation:
    while True:
        call = environment.oracle()
        assert call is not None
        seen = combine(environment, **call.arguments)
        assert "error" not in seen.metadata
        if seen.done:
            return seen


def steps_from(numbers: list[int]) -> list[tuple[Call, int, list[int]]]:
    """All legal combinations, written anew: the call, its result and the numbers after it."""
    steps = []
    for i, j in permutations(range(len(numbers)), 2):
        a, b = numbers[i], numbers[j]
        rest = [number for k, number in enumerate(numbers) if k not in (i, j)]
        results: dict[Operation, int] = {"+": a + b, "*": a * b}
        if a > b:
            results["-"] = a - b
        if a % b == 0:
            results["/"] = a // b
        steps += [((a, sign, b), value, [*rest, value]) for sign, value in results.items()]
    return steps


def closest(numbers: list[int], target: int, turns: int) -> int:
    """The smallest distance of anything that can be made."""
    if turns == 0 or len(numbers) < 2:
        return 10**9
    return min(
        min(abs(result - target), closest(rest, target, turns - 1))
        for _, result, rest in steps_from(numbers)
    )


@pytest.mark.parametrize("count", [3, 4, 5, 6])
@pytest.mark.parametrize("seeds", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_the_oracle_makes_the_target_of_every_seed(count: int, seeds: int) -> None:
    for seed in range(seeds):
        environment = game(seed, count=count)
        assert len(environment.numbers) == count and 10 <= environment.target <= 999
        seen = play_oracle(environment)
        assert seen.reward == 1.0
        assert seen.metadata["rewards"] == {"solved": 1.0, "closeness": 1.0}


def test_a_target_needs_more_than_one_combination() -> None:
    for seed in range(100):
        environment = game(seed)
        assert environment.target not in environment.numbers
        results = [result for _, result, _ in steps_from(environment.numbers)]
        assert environment.target not in results


def test_seeds_keep_their_tasks_from_release_to_release() -> None:
    tasks = [(environment.numbers, environment.target) for environment in map(game, (0, 1))]
    assert tasks == [([100, 2, 9, 7], 99), ([9, 3, 9, 4], 14)]


def test_the_first_observation_has_the_rules_and_the_task() -> None:
    environment = Countdown()
    shown = environment.reset(seed=1, max_turns=5)
    assert f"target {environment.target}" in shown and "Turns left: 5" in shown
    assert f"Numbers at hand: {', '.join(map(str, environment.numbers))}" in shown


def test_a_result_replaces_both_numbers() -> None:
    environment = game_of([7, 3, 7, 2], 100)
    seen = combine(environment, 7, "*", 7)
    assert "7 * 7 = 49" in seen.text and "Turns left: 5" in seen.text
    assert sorted(environment.numbers) == [2, 3, 49]
    assert seen.reward is None and not seen.done


@pytest.mark.parametrize(
    ("operation", "second", "result"), [("+", 4, 16), ("-", 4, 8), ("*", 4, 48), ("/", 4, 3)]
)
def test_the_four_operations(operation: Operation, second: int, result: int) -> None:
    environment = game_of([12, 4, 1], 500)
    combine(environment, 12, operation, second)
    assert environment.numbers[-1] == result


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ((9, "+", 3), "9 is not at hand"),
        ((3, "+", 9), "9 is not at hand"),
        ((8, "+", 8), "8 is at hand only once"),
        ((3, "-", 8), "3 - 8 is not positive"),
        ((5, "-", 5), "5 - 5 is not positive"),
        ((8, "/", 3), "8 / 3 is not a whole number"),
        ((0, "/", 0), "0 is not at hand"),
    ],
)
def test_an_illegal_combination_is_refused_with_its_rule(call: Call, reason: str) -> None:
    environment = game_of([3, 5, 5, 8], 100)
    seen = combine(environment, *call)
    fault = seen.metadata["error"]
    assert fault["error_type"] == "execution_error"
    assert reason in fault["message"] and "at hand: 3, 5, 5, 8" in fault["message"]
    assert environment.numbers == [3, 5, 5, 8] and environment.turns_left == 5
    assert seen.reward is None and not seen.done


def test_a_miss_is_worth_how_much_closer_the_best_result_came() -> None:
    environment = game_of([10, 5, 2], 30)  # 10 is 20 away.
    combine(environment, 10, "*", 2)  # 20 is 10 away.
    seen = combine(environment, 20, "-", 5)
    assert environment.oracle() is None
    assert seen.done and seen.reward == pytest.approx(0.5 * 0.5)
    assert seen.metadata["rewards"] == {"solved": 0.0, "closeness": pytest.approx(0.5)}


def test_results_that_are_worse_than_the_given_numbers_are_worth_nothing() -> None:
    environment = game_of([28, 1, 2], 30, turns=1)
    seen = combine(environment, 2, "-", 1)
    assert seen.done and seen.reward == 0.0


def test_a_refused_last_turn_ends_the_episode() -> None:
    environment = game_of([10, 5, 2], 30, turns=2)
    combine(environment, 10, "*", 2)
    seen = combine(environment, 77, "+", 1)
    assert seen.done and seen.reward == pytest.approx(0.25)


def test_the_oracle_does_the_best_that_is_possible_from_any_state() -> None:
    missed = 0
    for seed in range(60):
        environment, rng = game(seed, max_turns=2 + seed % 4), random.Random(seed)
        call, _, _ = rng.choice(steps_from(environment.numbers))
        if combine(environment, *call).done:
            continue
        possible = closest(environment.numbers, environment.target, environment.turns_left)
        best = min(possible, environment.best_distance)
        expected = 1.0 if best == 0 else 0.5 * (1 - best / environment.start_distance)
        assert play_oracle(environment).reward == pytest.approx(expected)
        missed += best > 0
    assert missed > 10  # The first step has led many of them into a dead end.


@pytest.mark.parametrize(
    ("task", "argument"),
    [({"count": 2}, "count"), ({"count": 7}, "count"), ({"max_turns": 0}, "max_turns")],
)
def test_bad_task_arguments_are_named(task: dict[str, Any], argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        Countdown().reset(**task)
