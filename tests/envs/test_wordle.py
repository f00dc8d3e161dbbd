import asyncio
import math
import random
from collections import Counter
from typing import Any

import pytest

from ludus.environment.introspection import build_env_spec
from ludus.environment.runner import EnvironmentRunner
from ludus.envs.wordle import Wordle
from ludus.envs.wordle.feedback import mark_guess
from ludus.envs.wordle.lexicon import LENGTHS, answers, guesses, secrets
from ludus.envs.wordle.solver import consistent_candidates, count_candidates, next_guess
from ludus.envs.wordle.word_index import WordIndex
from ludus.envs.wordle.working import write_working
from ludus.protocol.types import CallToolAction, CallToolObservation


def game(secret: str, **task: Any) -> Wordle:
    environment = Wordle()
    environment.reset(words=[secret], **task)
    return environment


def guess(environment: Wordle, word: str) -> CallToolObservation:
    seen = environment.step(CallToolAction(tool_name="guess", arguments={"word": word}))
    assert isinstance(seen, CallToolObservation)
    return seen


def rewards(seen: CallToolObservation) -> dict[str, float]:
    parts: dict[str, float] = seen.metadata["rewards"]
    return parts


def secret_of(**task: Any) -> str:
    environment = Wordle()
    environment.reset(**task)
    return environment.secret


def play_the_oracle(environment: Wordle) -> CallToolObservation:
    while True:
        call = environment.oracle()
        seen = environment.step(CallToolAction(tool_name=call.name, arguments=call.arguments))
        assert isinstance(seen, CallToolObservation)
        if seen.done:
            return seen


def turns_of_the_solver(secret: str) -> int:
    words, marked = answers(len(secret)), dict[str, str]()
    while secret not in marked:
        word = next_guess(marked, words, words)
        marked[word] = mark_guess(word, secret)
    return len(marked)


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


@pytest.mark.parametrize("length", LENGTHS)
def test_the_same_seed_gives_the_same_word(length: int) -> None:
    chosen = [secret_of(seed=seed, length=length) for seed in range(50)]
    assert chosen == [secret_of(seed=seed, length=length) for seed in range(50)]
    assert {len(word) for word in chosen} == {length}
    assert len(set(chosen)) > 40


def test_seeds_keep_their_words_from_release_to_release() -> None:
    assert [secret_of(seed=seed) for seed in range(3)] == ["livid", "combs", "bites"]
    assert [secret_of(seed=seed, pool="test") for seed in range(2)] == ["order", "dimes"]


@pytest.mark.parametrize("length", LENGTHS)
def test_no_training_task_has_a_secret_of_the_test_split(length: int) -> None:
    train, test = secrets(length, "train"), secrets(length, "test")
    assert sorted(train + test) == list(answers(length)) == list(secrets(length, "all"))
    assert 0.09 < len(test) / len(answers(length)) < 0.11
    environment = Wordle()
    for index in range(200):
        assert secret_of(length=length, **environment.get_task("train", index)) in train
        assert secret_of(length=length, **environment.get_task("test", index)) in test
        assert secret_of(length=length, seed=index * 10_007) in train


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
            assert word in consistent_candidates(environment.candidates, environment.marked)
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
    words = ["abide", "elder", "speed", "medal", "dream"]
    marked = {"speed": mark_guess("speed", "abide")}
    assert consistent_candidates(words, marked) == [
        word for word in words if mark_guess("speed", word) == marked["speed"]
    ]
    assert "abide" in consistent_candidates(words, marked)
    assert count_candidates(words, marked) == len(consistent_candidates(words, marked))


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
    words = answers(5)
    openings = {next_guess({}, words, words, random.Random(seed)) for seed in range(50)}
    assert len(openings) > 5
    pair = {next_guess({}, ["crane", "slope"], (), random.Random(seed)) for seed in range(20)}
    assert pair == {"crane", "slope"}
    fights = ["eight", "fight", "light", "might", "night", "right", "sight", "tight"]
    marked = {"bight": "XGGGG"}
    probes = {next_guess(marked, fights, ["films", "bight"], random.Random(n)) for n in range(20)}
    assert probes == {"films"}


def test_a_probe_tells_candidates_apart_that_differ_in_one_letter() -> None:
    words = ["eight", "fight", "light", "might", "night", "right", "sight", "tight"]
    assert next_guess({"bight": "XGGGG"}, words, ["films", "bight"]) == "films"


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
