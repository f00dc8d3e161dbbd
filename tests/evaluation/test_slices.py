"""Results by environment and difficulty."""

from __future__ import annotations

from typing import Any

from evaluation.small_evaluations import attempt
from ludus.evaluation.metrics import Attempt, build_metrics
from ludus.evaluation.slices import build_slices, find_levels

METRICS = build_metrics(1.0)


def at_level(place: int, reward: float, environment: str = "sums", **arguments: Any) -> Attempt:
    task = {**arguments, "seed": place}
    return attempt(place, reward, environment=environment, arguments=task)


def test_levels_are_the_arguments_that_differ_from_easy_to_hard() -> None:
    attempts = [
        at_level(place, 1.0, dataset_config={"max_digits": digits, "max_terms": 2}, split="test")
        for place, digits in enumerate([10, 9, 2, 10, 9, 2])
    ]
    levels = find_levels(attempts)
    assert list(dict.fromkeys(levels.values())) == ["max_digits=2", "max_digits=9", "max_digits=10"]
    assert levels[0] == "max_digits=10" and len(levels) == 6


def test_words_keep_the_order_of_the_plan() -> None:
    words = ["easy", "medium", "hard"]
    attempts = [at_level(place, 1.0, level=words[place % 3]) for place in reversed(range(9))]
    assert list(dict.fromkeys(find_levels(attempts).values())) == [f"level={it}" for it in words]


def test_tasks_that_all_differ_have_no_levels() -> None:
    assert find_levels([at_level(place, 1.0, goal=place) for place in range(40)]) == {}
    assert find_levels([at_level(place, 1.0, goal=7) for place in range(40)]) == {}
    assert find_levels([]) == {}


def test_each_environment_is_followed_by_its_levels() -> None:
    base = [at_level(place, 0.0, digits=2 + place % 2) for place in range(10)]
    base += [at_level(place, 1.0, "words") for place in range(10, 14)]
    other = [at_level(place, float(place % 2 == 0), digits=2 + place % 2) for place in range(10)]
    other += [at_level(place, 1.0, "words") for place in range(10, 14)]
    slices = build_slices([base, other], METRICS)
    assert [(each.environment, each.level) for each in slices] == [
        ("sums", None),
        ("sums", "digits=2"),
        ("sums", "digits=3"),
        ("words", None),
    ]
    whole, easy, hard, words = slices
    assert [part.metrics[1]["accuracy"].value for part in slices] == [0.5, 1.0, 0.0, 1.0]
    assert (easy.deltas[1]["accuracy"].value, hard.deltas[1]["accuracy"].value) == (1.0, 0.0)
    assert easy.deltas[0] == {} and words.metrics[0]["accuracy"].n == 4
    assert whole.metrics[0]["mean_reward"].value == 0.0
