"""The words of Wordle: seeds, splits, words that a task gives, and the lists."""

from __future__ import annotations

from typing import Any

import pytest

from envs.wordle_games import game, guess
from ludus.envs.wordle import LENGTHS, Wordle, answers, guesses, secrets


def secret_of(**task: Any) -> str:
    environment = Wordle()
    environment.reset(**task)
    return environment.secret


@pytest.mark.parametrize("length", LENGTHS)
def test_the_same_seed_gives_the_same_word(length: int) -> None:
    chosen = [secret_of(seed=seed, length=length) for seed in range(50)]
    assert chosen == [secret_of(seed=seed, length=length) for seed in range(50)]
    assert {len(word) for word in chosen} == {length}
    assert len(set(chosen)) > 40


def test_seeds_keep_their_words_from_release_to_release() -> None:
    assert [secret_of(seed=seed) for seed in range(3)] == ["wiper", "clank", "zests"]
    assert [secret_of(seed=seed, pool="test") for seed in range(2)] == ["jeers", "cares"]


@pytest.mark.parametrize("length", LENGTHS)
def test_no_training_task_has_a_secret_of_the_test_split(length: int) -> None:
    train, test = secrets(length, "train"), secrets(length, "test")
    assert sorted(train + test) == list(answers(length)) == list(secrets(length, "all"))
    assert 0.11 < len(test) / len(answers(length)) < 0.14
    environment = Wordle()
    for index in range(200):
        assert secret_of(length=length, **environment.get_task("train", index)) in train
        assert secret_of(length=length, **environment.get_task("test", index)) in test


def test_given_words_are_the_same_for_both_pools() -> None:
    words = ["above", "crane"]  # Of the common words, `above` is for testing and `crane` is not.
    for pool in ("train", "test"):
        assert {secret_of(seed=n, words=words, pool=pool) for n in range(20)} == set(words)


def test_the_secret_is_one_of_the_given_words_whatever_their_order() -> None:
    words = ["Quartz", "oxygen", "python", "quartz"]
    chosen = [secret_of(seed=seed, words=words) for seed in range(60)]
    assert chosen == [secret_of(seed=seed, words=words[::-1]) for seed in range(60)]
    assert set(chosen) == {"oxygen", "python", "quartz"}


def test_given_words_are_accepted_as_guesses_beside_the_word_list() -> None:
    environment = Wordle()
    environment.reset(words=["qzxwv", "vwxzq"], seed=0)
    other = next(word for word in environment.candidates if word != environment.secret)
    assert "Guesses left: 5" in guess(environment, other).result
    assert len(environment.marked) == 1
    guess(environment, "crane")
    assert len(environment.marked) == 2


def test_given_words_may_have_a_length_without_a_word_list() -> None:
    environment = game("ox", length=5)
    assert "has 2 letters" in guess(environment, "crane").result
    assert "not in the word list" in guess(environment, "it").result
    assert guess(environment, "ox").reward == 1.0


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ({"length": 3}, "length must be between 4 and 8"),
        ({"length": 9}, "length must be between 4 and 8"),
        ({"max_turns": 0}, "max_turns"),
        ({"words": []}, "words is empty"),
        ({"words": ["crane", "cranes"]}, "same length"),
        ({"words": ["crane", "cr4ne"]}, "'cr4ne'"),
        ({"words": [""]}, "''"),
    ],
)
def test_bad_task_arguments_are_named(task: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Wordle().reset(**task)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_lists_are_sorted_words_and_every_answer_may_be_guessed(length: int) -> None:
    words = answers(length)
    assert len(words) > 1000
    assert list(words) == sorted(set(words))
    assert set(words) <= guesses(length)
    assert all(
        len(word) == length and word.isascii() and word.isalpha() and word.islower()
        for word in guesses(length)
    )
