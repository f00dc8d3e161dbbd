"""The oracle of Wordle: its solver, its working, and progress."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from envs.wordle_games import game, guess
from ludus.envs.wordle import LENGTHS, Wordle, answers, word_index
from ludus.envs.wordle.solver import (
    WordIndex,
    mark_guess,
    write_working,
)
from ludus.protocol.types import CallToolAction, CallToolObservation


def play_the_oracle(environment: Wordle) -> CallToolObservation:
    while True:
        call = environment.oracle()
        seen = environment.step(CallToolAction(tool_name=call.name, arguments=call.arguments))
        assert isinstance(seen, CallToolObservation)
        if seen.done:
            return seen


def turns_of_the_solver(secret: str) -> int:
    index, marked = word_index(len(secret)), dict[str, str]()
    while secret not in marked:
        word = index.next_guess(marked)
        marked[word] = mark_guess(word, secret)
    return len(marked)


@pytest.mark.parametrize("seeds", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_the_oracle_solves_every_seed(seeds: int) -> None:
    environment = Wordle()
    for seed in range(seeds):
        environment.reset(seed=seed)
        assert play_the_oracle(environment).reward == 1.0


@pytest.mark.parametrize("length", LENGTHS)
def test_the_oracle_solves_every_length(length: int) -> None:
    environment = Wordle()
    for seed in range(5):
        environment.reset(seed=seed, length=length)
        assert play_the_oracle(environment).reward == 1.0


@pytest.mark.parametrize("words", [["ox", "it", "up", "we"], ["qzxwv", "vwxzq"], ["crane"]])
def test_the_oracle_solves_given_words(words: list[str]) -> None:
    environment = Wordle()
    environment.reset(seed=1, words=words, max_turns=2)
    assert play_the_oracle(environment).reward == 1.0


def test_the_oracle_solves_with_a_single_turn() -> None:
    environment = Wordle()
    environment.reset(seed=3, max_turns=1)
    assert play_the_oracle(environment).reward == 1.0


def test_the_oracle_takes_over_from_a_poor_player() -> None:
    environment = Wordle()
    environment.reset(seed=5)
    for word in ("fuzzy", "fuzzy", "qzxwv"):
        guess(environment, word)
    assert play_the_oracle(environment).reward == 1.0


def test_the_oracle_does_not_look_at_the_secret_before_the_last_turn() -> None:
    openings = set()
    for seed in range(20):
        environment = Wordle()
        environment.reset(seed=seed)
        openings.add(environment.oracle().arguments["word"])
    assert len(openings) == 1


@pytest.mark.parametrize(
    ("secret", "guessed", "known", "present", "absent"),
    [
        ("crane", [], "_ _ _ _ _", "-", "-"),
        ("crane", ["slate"], "_ _ A _ E", "-", "S L T"),
        ("crane", ["slate", "bread"], "_ R A _ E", "-", "S L T B D"),
        ("wiper", ["river"], "_ I _ E R", "-", "R V"),
        ("crane", ["nacre"], "_ _ _ _ E", "N 2 3 4, A 1 3 4, C 1 2 4, R 1 2 3", "-"),
        ("abide", ["speed"], "_ _ _ _ _", "E 1 2 5, D 1 2 3 4", "S P"),
        ("eerie", ["three"], "_ _ R _ E", "E 1 2", "T H"),
        ("geese", ["eerie"], "_ E _ _ E", "E 3 4", "R I"),
        ("dozed", ["dated"], "D _ _ E D", "-", "A T"),
    ],
)
def test_the_working_says_what_the_marks_mean_together(
    secret: str, guessed: list[str], known: str, present: str, absent: str
) -> None:
    marked = {word: mark_guess(word, secret) for word in guessed}
    assert write_working(marked, secret).splitlines() == [
        f"Known: {known}",
        f"In: {present}",
        f"Out: {absent}",
        f"Word: {' '.join(secret).upper()}",
    ]


def test_every_guess_with_working_fits_the_marks() -> None:
    environment = Wordle()
    for seed in range(30):
        environment.reset(seed=seed)
        done = False
        while not done:
            call = environment.oracle(rng=random.Random(seed), working=True)
            word = call.arguments["word"]
            marked = environment.marked
            assert all(mark_guess(old, word) == marks for old, marks in marked.items())
            assert call.text.endswith(f"Word: {' '.join(word.upper())}")
            done = guess(environment, word).done


def test_progress_grows_with_what_guesses_tell() -> None:
    environment = game("crane")
    assert environment.progress() == 0.0
    environment.reset(words=["crane", "crate", "slope", "bingo"], seed=3)
    environment.secret = "crane"
    values = [environment.progress()]
    for word in ("jumpy", "qzxwv", "bingo", "crane"):
        guess(environment, word)
        values.append(environment.progress())
    assert values == sorted(values)
    assert values[1] == values[2] < values[3] == 1 - math.log(2) / math.log(5)
    assert (values[0], values[-1]) == (0.0, 1.0)


def test_the_solver_finds_most_words_in_time_without_being_told() -> None:
    secrets = answers(5)[::100]
    in_time = [secret for secret in secrets if turns_of_the_solver(secret) <= 6]
    assert len(in_time) / len(secrets) > 0.95


def test_only_words_that_give_the_same_marks_stay_possible() -> None:
    words = ("abide", "elder", "speed", "medal", "dream")
    marked = {"speed": mark_guess("speed", "abide")}
    index = WordIndex(words, probes=("medal", "steed"))
    possible = index.list_words(index.consistent_words(marked))
    assert possible == [word for word in words if mark_guess("speed", word) == marked["speed"]]
    assert "abide" in possible


@pytest.mark.parametrize("word", ["speed", "allee", "eerie", "crane", "qzxwv"])
def test_an_index_splits_words_by_the_marks_of_a_guess(word: str) -> None:
    words = answers(5)[::10]
    index = WordIndex(words)
    by_marks = Counter(mark_guess(word, secret) for secret in words)
    parts = index.split_by_marks(index.all_words, word)
    assert sorted(part.bit_count() for part in parts) == sorted(by_marks.values())
    for marks, count in by_marks.items():
        same = index.list_words(index.consistent_words({word: marks}))
        assert [mark_guess(word, secret) for secret in same] == [marks] * count


def test_an_index_finds_the_words_whose_letters_score_best() -> None:
    words = answers(5)[::20]
    index = WordIndex(words)
    scores = {letter: number for number, letter in enumerate("zqjxkvbwfygpmuchdlontirsae")}
    sums = {word: sum(scores[letter] for letter in set(word)) for word in words}
    top = index.list_words(index.top_words(index.all_words, scores, 10))
    assert sorted(sums[word] for word in top) == sorted(sums.values())[-10:]


def test_a_generator_varies_openings_and_equally_good_guesses() -> None:
    openings = {word_index(5).next_guess({}, random.Random(seed)) for seed in range(50)}
    assert len(openings) > 5
    two = WordIndex(("crane", "slope"))
    pair = {two.next_guess({}, random.Random(seed)) for seed in range(20)}
    assert pair == {"crane", "slope"}
    fights = ("eight", "fight", "light", "might", "night", "right", "sight", "tight")
    marked, index = {"bight": "XGGGG"}, WordIndex(fights, ("films", "bight"))
    probes = {index.next_guess(marked, random.Random(n)) for n in range(20)}
    assert probes == {"films"}


def test_a_probe_tells_candidates_apart_that_differ_in_one_letter() -> None:
    words = ("eight", "fight", "light", "might", "night", "right", "sight", "tight")
    assert WordIndex(words, ("films", "bight")).next_guess({"bight": "XGGGG"}) == "films"
