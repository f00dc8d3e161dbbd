"""What environments offer for teaching: varied oracles, their working, random actions, progress."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ludus.data.tool_schema import ToolCall
from ludus.environment.tool_environment import ToolEnvironment
from ludus.envs.catch import Catch
from ludus.envs.guess_number import GuessNumber
from ludus.envs.sudoku import Sudoku
from ludus.envs.wordle import Wordle
from ludus.protocol.types import CallToolAction, CallToolObservation

ENVIRONMENTS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "catch": (Catch, {}),
    "guess_number": (GuessNumber, {}),
    "sudoku": (Sudoku, {}),
    "sudoku-hard": (Sudoku, {"difficulty": "hard"}),
    "sudoku-medium-9": (Sudoku, {"size": 9, "difficulty": "medium"}),
    "wordle": (Wordle, {}),
}
VARIED = [name for name in ENVIRONMENTS if name != "catch"]
SEEDS = {name: range(20 if name == "sudoku-medium-9" else 200) for name in ENVIRONMENTS}

Policy = Callable[[Any, random.Random], ToolCall]


def play(
    name: str, policy: Policy, *, seed: int, member: int = 0
) -> Iterator[tuple[Any, ToolCall, CallToolObservation]]:
    """Yield the environment, the call and its observation, turn by turn."""
    cls, task = ENVIRONMENTS[name]
    environment: ToolEnvironment = cls()
    environment.reset(seed=seed, **task)
    rng = random.Random(f"{seed}/{member}")
    done = False
    while not done:
        call = policy(environment, rng)
        seen = environment.step(CallToolAction(tool_name=call.name, arguments=call.arguments))
        assert isinstance(seen, CallToolObservation)
        yield environment, call, seen
        done = seen.done


def varied_oracle(environment: Any, rng: random.Random) -> ToolCall:
    call: ToolCall = environment.oracle(**oracle_options(environment, rng))
    return call


def oracle_options(environment: Any, rng: random.Random) -> dict[str, Any]:
    """`catch` has no other way that is as good: its oracle takes no generator."""
    return {} if isinstance(environment, Catch) else {"rng": rng}


def random_player(environment: Any, rng: random.Random) -> ToolCall:
    call: ToolCall = environment.random_action(rng)
    return call


def calls_of(name: str, *, seed: int, member: int) -> list[ToolCall]:
    return [call for _, call, _ in play(name, varied_oracle, seed=seed, member=member)]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_varied_oracle_reaches_the_top_and_full_progress(name: str) -> None:
    for seed in SEEDS[name]:
        for member in range(2):
            turns = list(play(name, varied_oracle, seed=seed, member=member))
            assert sum(seen.reward or 0.0 for _, _, seen in turns) == pytest.approx(1.0)
            assert turns[-1][0].progress() == 1.0


@pytest.mark.parametrize("name", VARIED)
def test_oracles_vary_with_their_generator_and_with_nothing_else(name: str) -> None:
    seeds = range(5)
    games = [[calls_of(name, seed=seed, member=member) for seed in seeds] for member in (0, 1, 0)]
    assert games[0] == games[2]
    assert games[0] != games[1]


@pytest.mark.parametrize("name", VARIED)
def test_random_actions_break_no_rule(name: str) -> None:
    for seed in SEEDS[name]:
        for environment, _, seen in play(name, random_player, seed=seed):
            assert seen.error is None
            assert "This still counts as a guess" not in str(seen.result)
            assert 0.0 <= environment.progress() <= 1.0


@pytest.mark.parametrize("name", ["guess_number", "wordle"])
def test_progress_starts_at_zero_and_never_falls(name: str) -> None:
    cls, task = ENVIRONMENTS[name]
    for seed in range(20):
        environment = cls()
        environment.reset(seed=seed, **task)
        values = [environment.progress()]
        values += [played.progress() for played, _, _ in play(name, random_player, seed=seed)]
        assert values[0] == 0.0
        assert values == sorted(values)


def test_progress_of_sudoku_counts_the_right_digits_that_are_there() -> None:
    environment = Sudoku()
    environment.reset(seed=1)
    call = environment.oracle()
    assert call is not None and environment.progress() == 0.0
    environment.step(CallToolAction(tool_name="place", arguments=call.arguments))
    assert environment.progress() == pytest.approx(1 / environment.blanks)
    removal = {**call.arguments, "digit": 0}
    environment.step(CallToolAction(tool_name="place", arguments=removal))
    assert environment.progress() == 0.0


def test_progress_of_catch_is_how_near_the_paddle_is() -> None:
    environment = Catch()
    environment.reset(seed=0, rows=5, columns=5)
    environment.ball, environment.paddle = 4, 2
    assert environment.progress() == 0.5
    environment.step(CallToolAction(tool_name="move", arguments={"direction": "right"}))
    assert environment.progress() == 0.75
    environment.ball, environment.fallen = 0, 2  # Three columns away, two rows above the bottom.
    assert environment.progress() == 0.0


def explains_catch(environment: Catch, call: ToolCall) -> bool:
    ball, paddle = (int(number) - 1 for number in re.findall(r"\d+", call.text))
    right_columns = (ball, paddle) == (environment.ball, environment.paddle)
    return right_columns and call.text.endswith(f": {call.arguments['direction']}.")


def explains_guess_number(environment: GuessNumber, call: ToolCall) -> bool:
    numbers = [int(number) for number in re.findall(r"\d+", call.text)]
    low, high, guess = environment.lowest, environment.highest, call.arguments["number"]
    if environment.turns_left == 1 and guess != (low + high) // 2:
        return numbers == [low, high, guess] and guess == environment.secret
    return numbers == [low, high, low, high, low + high, guess] and guess == (low + high) // 2


def explains_wordle(environment: Wordle, call: ToolCall) -> bool:
    """Whether the working is true of the secret, and the guess is what it spells."""
    known, present, absent, word = (
        line.partition(": ")[2].lower() for line in call.text.splitlines()
    )
    pattern, secret = known.split(), environment.secret
    open_places = [place for place, letter in enumerate(pattern) if letter == "_"]
    return (
        all(letter in ("_", own) for letter, own in zip(pattern, secret, strict=True))
        and not {secret[place] for place in open_places} & {*absent.split()}
        and all(
            any(secret[int(place) - 1] == entry[0] for place in entry.split()[1:])
            for entry in present.split(", ")
            if entry != "-"
        )
        and word == " ".join(call.arguments["word"])
    )


@pytest.mark.parametrize(
    ("name", "explains"),
    [
        ("catch", explains_catch),
        ("guess_number", explains_guess_number),
        ("wordle", explains_wordle),
    ],
)
def test_the_working_agrees_with_the_call_in_any_state(
    name: str, explains: Callable[[Any, ToolCall], bool]
) -> None:
    def check_and_wander(environment: Any, rng: random.Random) -> ToolCall:
        call: ToolCall = environment.oracle(**oracle_options(environment, rng), working=True)
        assert explains(environment, call), call
        if rng.random() < 0.3 and not isinstance(environment, Catch):
            return random_player(environment, rng)
        return call

    for seed in SEEDS[name]:
        for _ in play(name, check_and_wander, seed=seed):
            pass
