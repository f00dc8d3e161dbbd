from __future__ import annotations

import math
import random
from typing import Any

import pytest

from ludus.envs.guess_number import GuessNumber, GuessNumberAction
from ludus.protocol.types import TextObservation


def game(secret: int | None = None, **task: Any) -> GuessNumber:
    environment = GuessNumber()
    environment.reset(**{"seed": 0, **task})
    if secret is not None:
        environment.secret = secret
    return environment


def guess(environment: GuessNumber, number: int) -> TextObservation:
    seen = environment.step(GuessNumberAction(number=number))
    assert isinstance(seen, TextObservation)
    return seen


def play_oracle(environment: GuessNumber) -> tuple[TextObservation, int]:
    """The last observation, and the number of guesses."""
    guesses = 0
    while True:
        seen = guess(environment, environment.oracle().arguments["number"])
        guesses += 1
        if seen.done:
            return seen, guesses


def test_the_first_observation_tells_the_range_and_the_guesses() -> None:
    shown = GuessNumber().reset(seed=1, low=-5, high=20, max_turns=4)
    assert "from -5 to 20" in shown and "Guesses left: 4" in shown


def test_an_answer_tells_the_direction_and_what_is_left() -> None:
    environment = game(secret=60)
    low = guess(environment, 30).text
    assert "higher than 30" in low and "from 31 to 100" in low and "Guesses left: 6" in low
    high = guess(environment, 80).text
    assert "lower than 80" in high and "from 31 to 79" in high and "Guesses left: 5" in high
    useless = guess(environment, 10)
    assert "higher than 10" in useless.text and "from 31 to 79" in useless.text
    assert useless.reward is None and not useless.done


def test_the_number_is_worth_one_and_ends_the_episode() -> None:
    seen = guess(game(secret=60), 60)
    assert seen.done and seen.reward == 1.0
    assert seen.metadata["rewards"] == {"solved": 1.0, "narrowed": 1.0}


def test_an_episode_without_the_number_is_worth_what_was_learned() -> None:
    environment = game(secret=60, max_turns=2)
    guess(environment, 50)
    seen = guess(environment, 76)
    narrowed = 1 - math.log(25) / math.log(100)  # 51 to 75.
    assert seen.done and seen.reward == pytest.approx(0.4 * narrowed)
    assert seen.metadata["rewards"] == {"solved": 0.0, "narrowed": pytest.approx(narrowed)}
    assert "The number was 60." in seen.text


@pytest.mark.parametrize("number", [0, 101, -(10**30)])
def test_a_guess_out_of_range_is_refused_and_counts(number: int) -> None:
    environment = game(secret=60)
    seen = guess(environment, number)
    fault = seen.metadata["error"]
    assert fault["error_type"] == "execution_error"
    assert "from 1 to 100" in fault["message"] and "Guesses left: 6" in fault["message"]
    assert seen.reward is None and not seen.done


def test_a_refused_last_guess_ends_the_episode() -> None:
    seen = guess(game(secret=60, max_turns=1), 500)
    assert seen.done and seen.reward == 0.0
    assert seen.metadata["rewards"] == {"solved": 0.0, "narrowed": 0.0}


@pytest.mark.parametrize(("high", "turns"), [(1, 2), (2, 2), (6, 3), (7, 4), (99, 7), (127, 8)])
def test_by_default_halving_always_finds_the_number(high: int, turns: int) -> None:
    for secret in range(high + 1):
        environment = game(secret=secret, low=0, high=high)
        assert environment.turns_left == turns
        environment.turns_left += 1  # So that the oracle never has to be told the number.
        seen, guesses = play_oracle(environment)
        assert seen.reward == 1.0 and guesses <= turns


def test_the_oracle_finds_the_number_on_every_seed() -> None:
    assert {play_oracle(game(seed=seed))[0].reward for seed in range(200)} == {1.0}
    assert len({game(seed=seed).secret for seed in range(200)}) > 50


def test_the_oracle_takes_over_from_a_poor_player() -> None:
    for seed in range(50):
        environment, rng = game(seed=seed), random.Random(seed)
        for _ in range(6):
            if guess(environment, rng.randint(-20, 120)).done:
                break
        else:
            assert play_oracle(environment)[0].reward == 1.0


def test_seeds_keep_their_numbers_from_release_to_release() -> None:
    assert [game(seed=seed).secret for seed in range(4)] == [50, 18, 8, 31]


@pytest.mark.parametrize(
    ("task", "argument"), [({"low": 5, "high": 5}, "low"), ({"max_turns": 0}, "max_turns")]
)
def test_bad_task_arguments_are_named(task: dict[str, Any], argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        GuessNumber().reset(**task)
