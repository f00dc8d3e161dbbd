"""Copies and near copies: which episodes say the same, and which of them stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curation.attempts import GUESS, asked, attempt, call, curated, model, rows, run_of, told, user
from ludus.curation import CurateConfig, curate
from ludus.curation.minhash import MinHashIndex, shingles
from ludus.data.episode import Episode
from ludus.data.messages import Message
from ludus.errors import ConfigError

TALE = (
    "an old lighthouse keeper finds a sealed bottle on the beach after a storm and inside it a map "
    "of an island that no chart has ever shown, so he asks {} to sail there with him before winter "
    "closes the harbour; name the three things that they should take along and say why"
)


def left(folder: Path, *episodes: Episode, **how: Any) -> list[str]:
    curated(folder, *episodes, **how)
    return [row["episode_id"] for row in rows(folder / "out" / "train.jsonl")]


def played(word: str, id: str = "call_0", thought: str | None = None) -> tuple[Message, ...]:
    guess = model("", call("guess", {"word": word}, id), thought=thought)
    return user("Guess."), guess, told("right", id)


def test_the_ids_of_calls_make_no_difference(tmp_path: Path) -> None:
    some = [attempt("a", messages=played("owl", "x")), attempt("b", messages=played("owl", "y"))]
    assert curated(tmp_path, *some).left_out == {"duplicate": 1}


@pytest.mark.parametrize(
    "other",
    [
        attempt("b", messages=played("elk")),
        attempt("b", messages=played("owl", thought="An owl?")),
        attempt("b", messages=played("owl"), tools=(GUESS,)),
        attempt("b", messages=played("owl")[:2]),
        attempt("b", messages=(user("Guess!"), *played("owl")[1:])),
        attempt("b", messages=(*played("owl")[:2], told("wrong"))),
    ],
)
def test_arguments_thoughts_tools_and_every_word_make_one(tmp_path: Path, other: Episode) -> None:
    assert left(tmp_path, attempt("a", messages=played("owl")), other) == ["a", "b"]


def test_of_copies_the_best_stays_also_across_runs_and_tasks(tmp_path: Path) -> None:
    same = (user("q"), model("a"))
    runs = [
        run_of(tmp_path / "one", attempt("low", 0.1, messages=same), attempt("none", 0.0)),
        run_of(tmp_path / "two", attempt("high", 0.9, messages=same)),
    ]
    curate(runs, tmp_path / "out", CurateConfig())
    found = [row["episode_id"] for row in rows(tmp_path / "out" / "train.jsonl")]
    assert found == ["none", "high"]


def test_copies_stay_where_that_is_asked_for(tmp_path: Path) -> None:
    some = [attempt(name, messages=(user("q"), model("a"))) for name in "abc"]
    assert left(tmp_path, *some, dedupe=False) == ["a", "b", "c"]


def test_prompts_that_differ_in_numbers_alone_are_no_copies(tmp_path: Path) -> None:
    some = [
        asked(f"{n}", f"What is {n} plus {3 * n + 7}? Answer with one number.") for n in range(40)
    ]
    assert len(left(tmp_path, *some, near_prompts=0.5)) == 40


def test_where_all_tasks_have_the_same_prompt_none_is_a_copy_of_another(tmp_path: Path) -> None:
    some = [asked(str(n), "Guess the secret word in six tries or less.") for n in range(12)]
    assert len(left(tmp_path, *some, near_prompts=0.5)) == 12


def test_a_prompt_with_one_word_of_forty_changed_is_a_near_copy_and_the_first_task_stays(
    tmp_path: Path,
) -> None:
    others = [
        asked(f"o{n}", f"Count to {n} in French, and then say why {n * n}.") for n in range(9)
    ]
    tales = [asked("niece", TALE.format("niece")), asked("nephew", TALE.format("nephew"), 5.0)]
    report = curated(tmp_path, *others, *tales, near_prompts=0.8)
    assert report.left_out == {"near-prompt": 1}
    assert "niece" in [row["episode_id"] for row in rows(tmp_path / "out" / "train.jsonl")]


def test_all_attempts_at_a_near_copied_task_go(tmp_path: Path) -> None:
    first, copy = user(TALE.format("Ann")), user(TALE.format("Bob"))
    some = [
        attempt("a", task="ann", messages=(first, model("rope"))),
        attempt("b", task="bob", messages=(copy, model("bread"))),
        attempt("c", task="bob", messages=(copy, model("a lamp"))),
    ]
    assert left(tmp_path, *some, near_prompts=0.8) == ["a"]


def answers(*rewards: float, tasks: tuple[str, ...]) -> list[Episode]:
    """Attempts whose words are nearly the same."""
    return [
        attempt(
            f"{task}{at}",
            reward,
            task=task,
            messages=(user(f"Task {task}"), model(TALE.format(f"cousin{at}"))),
        )
        for at, (reward, task) in enumerate(zip(rewards, tasks, strict=True))
    ]


def test_of_near_copies_at_the_same_task_the_better_stays(tmp_path: Path) -> None:
    some = answers(0.1, 0.9, 0.5, tasks=("s", "s", "t"))
    assert left(tmp_path, *some, near_completions=0.8) == ["s1", "t2"]


def test_near_copies_at_any_task_go_where_that_is_asked_for(tmp_path: Path) -> None:
    some = answers(0.1, 0.5, 0.9, tasks=("s", "s", "t"))
    assert left(tmp_path, *some, near_completions=0.8, across_tasks=True) == ["t2"]


def test_calls_and_thoughts_are_compared_too(tmp_path: Path) -> None:
    def thinking(name: str, thought: str, word: str) -> Episode:
        reply = model("", call("guess", {"word": word}), thought=thought)
        return attempt(name, task="t", messages=(user("Guess."), reply))

    some = [
        thinking("a", TALE.format("Ann"), "owl"),
        thinking("b", TALE.format("Bob"), "owl"),
        thinking("c", "The letters in place are e and l.", "elk"),
    ]
    assert left(tmp_path, *some, near_completions=0.7) == ["a", "c"]


def test_attempts_that_say_nothing_at_all_are_no_near_copies(tmp_path: Path) -> None:
    some = [attempt(f"{n}", task="t", messages=(user("q"), model(), told(f"{n}"))) for n in "abc"]
    assert left(tmp_path, *some, near_completions=0.5) == ["a", "b", "c"]


def test_the_same_files_in_the_same_order_give_the_same_rows(tmp_path: Path) -> None:
    some = answers(*(n % 3 / 2 for n in range(30)), tasks=tuple("stuv" * 7 + "st"))
    how = {"near_prompts": 0.8, "near_completions": 0.8}
    left(tmp_path / "1", *some, **how)
    left(tmp_path / "2", *some, **how)
    files = [tmp_path / number / "out" / "train.jsonl" for number in "12"]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_shingles_are_three_words_in_a_row_whatever_their_case() -> None:
    assert shingles("The owl, at  Night") == {"the owl ,", "owl , at", ", at night"}
    assert shingles("Owl") == {"owl"} and shingles(" ") == set()


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_equal_texts_are_near_copies_at_any_threshold_and_strange_ones_at_none(
    threshold: float,
) -> None:
    near = MinHashIndex(threshold)
    assert near.add(shingles(TALE)) == []
    assert near.add(shingles("Count to three in French, and then say why.")) == []
    assert near.find_similar(shingles(TALE.upper())) == [0]


@pytest.mark.parametrize("threshold", [0.0, 1.01, float("nan")])
@pytest.mark.parametrize("name", ["near_prompts", "near_completions", "likeness"])
def test_a_likeness_that_cannot_be_is_refused(name: str, threshold: float) -> None:
    settings: dict[str, Any] = {name: threshold}
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        CurateConfig(**settings)


def test_scripts_without_spaces_are_compared_letter_by_letter() -> None:
    sentence = "狐は高い所に実った葡萄を見つけて何度も跳び上がったがどうしても届かなかった"
    near = MinHashIndex(0.7)
    near.add(shingles(sentence))
    assert near.find_similar(shingles(sentence.replace("葡萄", "果実"))) == [0]
    assert near.find_similar(shingles(sentence[::-1])) == []
