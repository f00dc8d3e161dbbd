"""Only right answers get the top reward: no constants, tricks of notation, or joined premises."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ludus.envs.reasoning_gym import ReasoningGym, ReasoningGymAction

SEEDS = range(12)


def scores(variant: str, answer: Callable[[Any], str], **task: Any) -> list[float]:
    """The scores of an answer that is made from the metadata of the question."""
    environment = ReasoningGym(variant)
    found = []
    for seed in SEEDS:
        metadata = environment.reset(seed=seed, size=1, **task).dataset_metadata
        score = environment.step(ReasoningGymAction(answer=answer(metadata))).score
        assert score is not None
        found.append(score)
    return found


@pytest.mark.parametrize(
    ("variant", "answer"),
    [
        ("coin_flip", "0"),
        ("coin_flip", "0.00005"),
        ("complex_arithmetic", "nan"),
        ("complex_arithmetic", "NaN + nani"),
        ("puzzle24", "1*1*3*8"),
        ("puzzle24", "4*6*pi/pi"),
    ],
)
def test_constant_is_not_right(variant: str, answer: str) -> None:
    assert max(scores(variant, lambda metadata: answer)) < 0.1


def test_list_of_nan_is_not_sorted() -> None:
    def undefined(metadata: Any) -> str:
        return json.dumps([float("nan")] * len(metadata["original_numbers"]))

    assert max(scores("number_sorting", undefined)) == 0.0
    assert max(scores("number_sorting", lambda m: undefined(m).replace("NaN", '"nan"'))) == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        # Numbers that a search for digits does not see.
        lambda target, numbers: f"{target}e0 + 0e0*({'+'.join(numbers)})",
        lambda target, numbers: f"{target:#x} + 0x0*({'+'.join(numbers)})",
        lambda target, numbers: f"{target // 10}_{target % 10} + 0_0*({'+'.join(numbers)})",
        # Ones for nothing, by names, powers and complements.
        lambda target, numbers: "+".join(["(pi/pi)"] * target) + f"+({'+'.join(numbers)})*(E-E)",
        lambda target, numbers: "-~" * (target - sum(map(int, numbers))) + f"({'+'.join(numbers)})",
        # Right, but of some of the numbers twice or not at all.
        lambda target, numbers: "+".join([numbers[0]] * 3),
        lambda target, numbers: str(target),
    ],
)
def test_target_is_made_from_the_given_numbers(answer: Callable[[int, list[str]], str]) -> None:
    def cheat(metadata: Any) -> str:
        return answer(metadata["target"], list(map(str, metadata["numbers"])))

    assert max(scores("countdown", cheat)) < 0.1


@pytest.mark.parametrize("form", ["{:.10g}", "{:.4g}", "{:e}", " {:.10f}"])
def test_probability_may_be_rounded(form: str) -> None:
    def rounded(metadata: Any) -> str:
        rational = metadata["rational"]
        return form.format(rational["numerator"] / rational["denominator"])

    assert scores("coin_flip", rounded) == [1.0] * len(SEEDS)


def test_fraction_is_a_probability() -> None:
    def fraction(metadata: Any) -> str:
        return "{numerator}/{denominator}".format(**metadata["rational"])

    assert scores("coin_flip", fraction) == [1.0] * len(SEEDS)


def life_scores(board: Callable[[Any], Any]) -> list[float]:
    """The scores of boards that are made from the right ones."""
    environment = ReasoningGym("game_of_life")
    found = []
    for seed in SEEDS:
        environment.reset(seed=seed, size=1)
        right = environment.oracle()
        assert right is not None
        answer = json.dumps(board(json.loads(right.arguments["answer"])))
        found.append(environment.step(ReasoningGymAction(answer=answer)).score or 0.0)
    return found


def test_board_is_scored_by_its_living_cells() -> None:
    def half(board: Any) -> Any:
        living = [(y, x) for y, row in enumerate(board) for x, cell in enumerate(row) if cell]
        for y, x in living[::2]:
            board[y][x] = 0
        return board

    assert life_scores(lambda board: board) == [1.0] * len(SEEDS)
    empty = life_scores(lambda board: [[0] * len(row) for row in board])
    assert set(empty) == {0.0, 1.0} and empty.count(1.0) < 6
    assert max(life_scores(lambda board: [[1] * len(row) for row in board])) < 0.2
    assert max(life_scores(lambda board: board[1:])) == 0.0
    assert 0.2 < sorted(life_scores(half))[len(SEEDS) // 2] <= 0.5


def test_there_is_something_to_insert() -> None:
    assert max(scores("string_insertion", lambda metadata: metadata["string"])) == 0.0
    assert scores("string_insertion", lambda metadata: metadata["solution"]) == [1.0] * len(SEEDS)


def test_syllogisms_follow_half_of_the_time() -> None:
    environment = ReasoningGym("syllogism")

    def valid(**config: float) -> list[bool]:
        drawn = [environment.reset(seed=seed, size=1, dataset_config=config) for seed in range(100)]
        return [bool(each.dataset_metadata and each.dataset_metadata["is_valid"]) for each in drawn]

    assert 35 < sum(valid()) < 65
    assert all(valid(invalid_ratio=0.0, inversion_probability=0.0))
