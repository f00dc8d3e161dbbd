"""Rewards from the scores of an Inspect AI sample."""

from typing import Any

import pytest

from curation.importers.inspect_logs import member
from ludus.curation.importers.inspect_importer import parse_reward


def build_scores(**values: Any) -> dict[str, Any]:
    return {"scores": {name: {"value": value} for name, value in values.items()}}


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        *[("C", 1.0), ("I", 0.0), ("P", 0.5), ("N", 0.0)],
        *[(True, 1.0), (False, 0.0), (3, 3.0), (0.25, 0.25)],
        *[("0.75", 0.75), ("yes", 1.0), ("No", 0.0)],
        *[(float("nan"), None), (None, None), ("splendid", None)],
    ],
)
def test_scores_are_converted_as_in_inspect(value: Any, reward: float | None) -> None:
    assert parse_reward(build_scores(match=value))[0] == reward


def test_the_first_scorer_gives_the_reward_and_all_are_kept() -> None:
    assert parse_reward(member("samples/sky_epoch_1.json")) == (
        1.0,
        {"match": 1.0, "brevity": 0.5, "tone/warm": 0.25, "tone/kind": 1.0},
    )


def test_other_scorers_do_not_replace_an_unscored_first_one() -> None:
    assert parse_reward(build_scores(match=float("nan"), brevity=0.5)) == (None, {"brevity": 0.5})


def test_a_scorer_with_one_value_takes_precedence() -> None:
    assert parse_reward(build_scores(tone={"warm": 0.0, "kind": 0.0}, match="C"))[0] == 1.0


def test_several_values_are_averaged() -> None:
    assert parse_reward(build_scores(tone={"warm": 0.25, "kind": True, "odd": None})) == (
        0.625,
        {"tone/warm": 0.25, "tone/kind": 1.0},
    )
    assert parse_reward(build_scores(steps=["C", "I"])) == (0.5, {"steps/0": 1.0, "steps/1": 0.0})


def test_without_a_score_there_is_no_reward() -> None:
    assert (
        parse_reward({"scores": {}})
        == parse_reward({"scores": None})
        == parse_reward({})
        == (None, {})
    )


def test_the_unnamed_score_of_old_logs() -> None:
    assert parse_reward({"score": {"value": "C"}}) == (1.0, {"score": 1.0})
