"""Which episode is which."""

from __future__ import annotations

from collections import Counter

import pytest

from ludus.data.episode import task_group_id
from ludus.environment.mixture import Mixture, mix, parse_mixture
from ludus.errors import ConfigError
from ludus.rollout.plan import Plan, task_seed


def plan(text: str = "wordle", **settings: object) -> Plan:
    return Plan(run_id="0badcafe", mixture=parse_mixture(text), **settings)  # type: ignore[arg-type]


def test_an_episode_of_a_run_is_the_same_whenever_it_is_asked_for() -> None:
    assert plan(seed=3)[17] == plan(seed=3)[17]
    assert plan(seed=3)[17].episode_id == "0badcafe-000017"
    assert plan(seed=3)[17].task == {"seed": task_seed(3, 17)}


def test_runs_with_different_seeds_share_no_tasks() -> None:
    tasks = [{plan(seed=seed)[index].seed for index in range(2000)} for seed in (0, 1)]
    assert len(tasks[0]) == 2000
    assert not tasks[0] & tasks[1]


def test_members_of_a_group_have_the_same_task_and_different_numbers() -> None:
    group = [plan(group_size=4)[index] for index in range(4, 8)]
    assert len({play.group_id for play in group}) == 1
    assert len({play.seed for play in group}) == 1
    assert [play.member for play in group] == [0, 1, 2, 3]
    assert len({play.episode_id for play in group}) == 4
    assert plan(group_size=4)[8].group_id != group[0].group_id


def test_a_task_has_the_same_group_in_every_run() -> None:
    here = plan(task={"length": 6})[0]
    there = Plan(run_id="11111111", mixture=mix({"wordle": 1}), task={"length": 6})[0]
    assert here.group_id == there.group_id == task_group_id("wordle", here.task)
    assert plan(task={"length": 5})[0].group_id != here.group_id


def test_every_stretch_of_a_mix_has_its_shares() -> None:
    made = plan("wordle=0.7,catch=0.3", seed=5)
    for begin in (0, 400, 1000):
        count = Counter(made[index].environment for index in range(begin, begin + 100))
        assert 68 <= count["wordle"] <= 72


def test_a_group_stays_in_its_environment() -> None:
    made = plan("wordle,catch", group_size=5)
    for begin in range(0, 200, 5):
        assert len({made.spec_of(index) for index in range(begin, begin + 5)}) == 1


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("wordle", (("wordle", 1.0),)),
        ("wordle,catch", (("wordle", 0.5), ("catch", 0.5))),
        ("wordle=3, catch=1", (("wordle", 0.75), ("catch", 0.25))),
        ("reasoning_gym:chain_sum", (("reasoning_gym:chain_sum", 1.0),)),
        ("http://a:8000/?x=1", (("http://a:8000/?x=1", 1.0),)),
        ("http://a:8000=1,http://b:8000=1", (("http://a:8000", 0.5), ("http://b:8000", 0.5))),
    ],
)
def test_a_mix_is_read_as_it_is_written(text: str, shares: tuple[tuple[str, float], ...]) -> None:
    assert parse_mixture(text) == Mixture(shares)


@pytest.mark.parametrize("text", ["wordle=x", "wordle=0,catch=1", "wordle,wordle", ",", "a=-1"])
def test_a_mix_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_mixture(text)
