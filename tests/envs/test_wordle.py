"""Wordle: marks, guesses that are not valid, and rewards."""

from __future__ import annotations

import asyncio

import pytest

from envs.wordle_games import game, guess
from ludus.environment.introspection import build_env_spec
from ludus.environment.runner import EnvironmentRunner
from ludus.envs.wordle import Wordle
from ludus.envs.wordle.solver import mark_guess
from ludus.protocol.types import CallToolObservation


def rewards(seen: CallToolObservation) -> dict[str, float]:
    parts: dict[str, float] = seen.metadata["rewards"]
    return parts


@pytest.mark.parametrize(
    ("word", "secret", "marks"),
    [
        ("crane", "crane", "GGGGG"),
        ("speed", "abide", "XXYXY"),
        ("speed", "steal", "GXGXX"),
        ("speed", "erase", "YXYYX"),
        ("speed", "crepe", "XYGYX"),
        ("allee", "apple", "GYXXG"),
        ("allee", "eagle", "YYXYG"),
        ("eerie", "there", "YXYXG"),
        ("llama", "label", "GYYXX"),
        ("array", "roars", "YYYXX"),
        ("geese", "elegy", "YYGXX"),
        ("tests", "stats", "YXYGG"),
        ("abcd", "efgh", "XXXX"),
    ],
)
def test_a_letter_is_marked_as_often_as_the_secret_has_it(
    word: str, secret: str, marks: str
) -> None:
    assert mark_guess(word, secret) == marks


def test_the_first_observation_tells_the_rules_and_not_the_word() -> None:
    shown = Wordle().reset(words=["zebra"], max_turns=4)
    assert "5 letters" in shown
    assert "Guesses left: 4" in shown
    assert "zebra" not in shown.lower()


def test_an_answer_shows_letters_marks_and_guesses_left() -> None:
    seen = guess(game("abide"), "speed")
    assert seen.result == "S P E E D\nX X Y X Y\nGuesses left: 5"
    assert seen.reward is None
    assert not seen.done


@pytest.mark.parametrize("written", ["CRANE", " crane\n", "[crane]", " [ Crane ] ", "C R A N E"])
def test_case_blanks_and_brackets_do_not_matter(written: str) -> None:
    assert guess(game("crane"), written).reward == 1.0


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("cranes", "The secret word has 5 letters, and your guess has 6."),
        ("cr4ne", "letters from a to z only"),
        ("crâne", "letters from a to z only"),
        ("is it", "letters from a to z only"),
        ("", "letters from a to z only"),
        ("qzxwv", "QZXWV is not in the word list."),
    ],
)
def test_an_invalid_guess_costs_a_turn_and_is_told_why(word: str, why: str) -> None:
    seen = guess(game("crane"), word)
    assert why in seen.result
    assert "Guesses left: 5" in seen.result
    assert seen.error is None
    assert not seen.done


def test_a_repeated_guess_costs_a_turn_and_is_told_why() -> None:
    environment = game("crane")
    guess(environment, "speed")
    seen = guess(environment, "[Speed]")
    assert seen.result.startswith("You have guessed SPEED before.")
    assert "Guesses left: 4" in seen.result


def test_an_invalid_last_guess_ends_the_episode() -> None:
    seen = guess(game("crane", max_turns=1), "qzxwv")
    assert seen.done
    assert seen.reward == 0.0
    assert rewards(seen) == {"solved": 0.0, "greens": 0.0, "yellows": 0.0}
    assert "QZXWV is not in the word list." in seen.result
    assert "The word was CRANE." in seen.result


def test_finding_the_word_is_worth_one_and_ends_the_episode() -> None:
    environment = game("crane")
    guess(environment, "speed")
    seen = guess(environment, "crane")
    assert seen.done
    assert seen.reward == 1.0
    assert rewards(seen) == {"solved": 1.0, "greens": 1.0, "yellows": 0.0}
    assert seen.result == "C R A N E\nG G G G G\nYou found the word."


def test_the_word_can_be_found_with_the_last_guess() -> None:
    assert guess(game("crane", max_turns=1), "crane").reward == 1.0


def test_an_unsolved_game_is_worth_its_best_guess_and_tells_the_word() -> None:
    environment = game("crane", max_turns=3)
    guess(environment, "speed")
    guess(environment, "crate")
    seen = guess(environment, "nasal")
    assert seen.done
    assert seen.reward == pytest.approx(0.4 * 4 / 5)
    assert rewards(seen) == {"solved": 0.0, "greens": 0.8, "yellows": 0.0}
    assert "The word was CRANE." in seen.result


def test_yellow_letters_earn_a_quarter_of_green_ones() -> None:
    seen = guess(game("crane", max_turns=1), "nacre")
    assert seen.reward == pytest.approx(0.4 * 1 / 5 + 0.1 * 4 / 5)
    assert rewards(seen) == {"solved": 0.0, "greens": 0.2, "yellows": 0.8}


def test_a_lost_guess_does_not_lower_the_best_one() -> None:
    environment = game("crane", max_turns=2)
    guess(environment, "crate")
    assert guess(environment, "crate").reward == pytest.approx(0.32)


def test_a_host_plays_bare_actions_and_named_calls() -> None:
    async def play() -> None:
        host = EnvironmentRunner(build_env_spec(Wordle))
        await host.start()
        await host.reset({"words": ["crane"]})
        first = await host.step({"word": "speed"})
        last = await host.call("guess", {"word": "crane"})
        await host.close()
        assert (first.reward, first.done) == (None, False)
        assert (last.reward, last.done) == (1.0, True)

    asyncio.run(play())
