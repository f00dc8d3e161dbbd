"""What the scores of an Inspect AI sample come to."""

from typing import Any

import pytest

from curation.importers.inspect_logs import member
from ludus.curation.importers.inspect.inspect_outcome import parse_reward


def scored(**values: Any) -> dict[str, Any]:
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
def test_a_score_is_a_number_as_inspect_reads_it(value: Any, reward: float | None) -> None:
    assert parse_reward(scored(match=value))[0] == reward


def test_the_first_scorer_has_the_say_and_all_are_named() -> None:
    assert parse_reward(member("samples/sky_epoch_1.json")) == (
        1.0,
        {"match": 1.0, "brevity": 0.5, "tone/warm": 0.25, "tone/kind": 1.0},
    )


def test_where_the_first_scorer_did_not_score_the_others_do_not_stand_in() -> None:
    assert parse_reward(scored(match=float("nan"), brevity=0.5)) == (None, {"brevity": 0.5})


def test_a_scorer_with_several_values_gives_way_to_one_with_one() -> None:
    assert parse_reward(scored(tone={"warm": 0.0, "kind": 0.0}, match="C"))[0] == 1.0


def test_several_values_alone_are_averaged() -> None:
    assert parse_reward(scored(tone={"warm": 0.25, "kind": True, "odd": None})) == (
        0.625,
        {"tone/warm": 0.25, "tone/kind": 1.0},
    )
    assert parse_reward(scored(steps=["C", "I"])) == (0.5, {"steps/0": 1.0, "steps/1": 0.0})


def test_without_a_score_there_is_no_reward() -> None:
    assert (
        parse_reward({"scores": {}})
        == parse_reward({"scores": None})
        == parse_reward({})
        == (None, {})
    )


def test_the_oldest_logs_have_one_score_without_a_name() -> None:
    assert parse_reward({"score": {"value": "C"}}) == (1.0, {"score": 1.0})
