"""Exact and near duplicates: which are found, and which of them is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curation.attempts import (
    GUESS,
    attempt,
    attempt_at,
    call,
    curate_episodes,
    model,
    read_rows,
    tool_result,
    user,
    write_run,
)
from ludus.curation import CurateConfig, curate
from ludus.curation.similarity import SimilarTasks, TaskPrompt, shingles
from ludus.data.episode import Episode
from ludus.data.messages import Message
from ludus.errors import ConfigError

TALE = (
    "an old lighthouse keeper finds a sealed bottle on the beach after a storm and inside it a map "
    "of an island that no chart has ever shown, so he asks {} to sail there with him before winter "
    "closes the harbour; name the three things that they should take along and say why"
)


def left(folder: Path, *episodes: Episode, **how: Any) -> list[str]:
    curate_episodes(folder, *episodes, **how)
    return [row["episode_id"] for row in read_rows(folder / "out" / "train.jsonl")]


def played(word: str, id: str = "call_0", reasoning: str | None = None) -> tuple[Message, ...]:
    guess = model("", call("guess", {"word": word}, id), reasoning=reasoning)
    return user("Guess."), guess, tool_result("right", id)


def test_call_ids_are_ignored(tmp_path: Path) -> None:
    some = [attempt("a", messages=played("owl", "x")), attempt("b", messages=played("owl", "y"))]
    assert curate_episodes(tmp_path, *some).left_out == {"duplicate": 1}


@pytest.mark.parametrize(
    "other",
    [
        attempt("b", messages=played("elk")),
        attempt("b", messages=played("owl", reasoning="An owl?")),
        attempt("b", messages=played("owl"), tools=(GUESS,)),
        attempt("b", messages=played("owl")[:2]),
        attempt("b", messages=(user("Guess!"), *played("owl")[1:])),
        attempt("b", messages=(*played("owl")[:2], tool_result("wrong"))),
    ],
)
def test_episodes_with_different_contents_are_not_duplicates(
    tmp_path: Path, other: Episode
) -> None:
    assert left(tmp_path, attempt("a", messages=played("owl")), other) == ["a", "b"]


def test_the_best_duplicate_is_kept_across_runs_and_tasks(tmp_path: Path) -> None:
    same = (user("q"), model("a"))
    runs = [
        write_run(tmp_path / "one", attempt("low", 0.1, messages=same), attempt("none", 0.0)),
        write_run(tmp_path / "two", attempt("high", 0.9, messages=same)),
    ]
    curate(runs, tmp_path / "out", CurateConfig())
    ids = [row["episode_id"] for row in read_rows(tmp_path / "out" / "train.jsonl")]
    assert ids == ["none", "high"]


def test_duplicates_are_kept_without_dedupe(tmp_path: Path) -> None:
    some = [attempt(name, messages=(user("q"), model("a"))) for name in "abc"]
    assert left(tmp_path, *some, dedupe=False) == ["a", "b", "c"]


@pytest.mark.parametrize(("to", "rows"), [("sft", 1), ("episodes", 2), ("nemo-gym", 2)])
def test_by_default_only_rows_for_training_are_deduplicated(
    tmp_path: Path, to: Any, rows: int
) -> None:
    twice = [attempt(name, messages=played("crane")) for name in "ab"]
    curate_episodes(tmp_path, *twice, to=to)
    assert len(read_rows(tmp_path / "out" / "train.jsonl")) == rows


def test_prompts_that_differ_only_in_numbers_are_not_near_duplicates(tmp_path: Path) -> None:
    some = [
        attempt_at(f"{n}", f"What is {n} plus {3 * n + 7}? Answer with one number.")
        for n in range(40)
    ]
    report = curate_episodes(tmp_path, *some, test_size=0.5, similarity_threshold=0.5)
    assert report.families == 0


def test_a_prompt_of_all_tasks_does_not_make_them_duplicates(tmp_path: Path) -> None:
    some = [attempt_at(str(n), "Guess the secret word in six tries or less.") for n in range(12)]
    report = curate_episodes(tmp_path, *some, test_size=0.5, similarity_threshold=0.5)
    assert report.families == 0


def test_tasks_with_nearly_equal_prompts_are_near_duplicates(tmp_path: Path) -> None:
    others = [
        attempt_at(f"o{n}", f"Count to {n} in French, and then say why {n * n}.") for n in range(9)
    ]
    tales = [
        attempt_at("niece", TALE.format("niece")),
        attempt_at("nephew", TALE.format("nephew"), 5.0),
    ]
    report = curate_episodes(tmp_path, *others, *tales, test_size=0.2)
    assert report.families == 1


def test_shingles_are_three_words_and_ignore_case() -> None:
    assert shingles("The owl, at  Night") == {"the owl ,", "owl , at", ", at night"}
    assert shingles("Owl") == {"owl"} and shingles(" ") == set()


def prompt(text: str) -> TaskPrompt:
    return TaskPrompt("task", "quiz", None, shingles(text))


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_equal_texts_match_at_any_threshold_and_unrelated_ones_at_none(
    threshold: float,
) -> None:
    near = SimilarTasks(threshold)
    near.add(prompt(TALE), 7)
    assert near.find_similar(prompt("Count to three in French, and then say why.")) == []
    assert near.find_similar(prompt(TALE.upper())) == [7]


@pytest.mark.parametrize("threshold", [0.0, 1.01, float("nan")])
def test_similarities_must_be_above_0_and_at_most_1(threshold: float) -> None:
    with pytest.raises(ConfigError, match="similarity_threshold"):
        CurateConfig(similarity_threshold=threshold)


def test_scripts_without_spaces_are_compared_by_characters() -> None:
    sentence = "狐は高い所に実った葡萄を見つけて何度も跳び上がったがどうしても届かなかった"
    near = SimilarTasks(0.7)
    near.add(prompt(sentence))
    assert near.find_similar(prompt(sentence.replace("葡萄", "果実"))) == [0]
    assert near.find_similar(prompt(sentence[::-1])) == []
