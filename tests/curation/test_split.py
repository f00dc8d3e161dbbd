"""Splits without a common task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curation.attempts import (
    FABLE,
    attempt,
    attempt_at,
    curate_episodes,
    many,
    model,
    read_rows,
    user,
    write_run,
)
from ludus.curation import CurateConfig, curate
from ludus.data.episode import Episode
from ludus.errors import ConfigError


def split_tasks(folder: Path, *episodes: Episode, **how: Any) -> tuple[set[str], set[str]]:
    """Return the tasks of the train and the test split."""
    curate_episodes(folder, *episodes, **how)
    train, test = (read_rows(folder / "out" / f"{side}.jsonl") for side in ("train", "test"))
    return {row["group_id"] for row in train}, {row["group_id"] for row in test}


@pytest.mark.parametrize("to", ["sft", "episodes"])
def test_the_split_is_by_task(tmp_path: Path, to: str) -> None:
    train, test = split_tasks(tmp_path, *many(50), test_size=0.2, to=to)
    assert not train & test and len(train | test) == 50
    assert len(test) == 10
    rows = [read_rows(tmp_path / "out" / f"{side}.jsonl") for side in ("train", "test")]
    assert [len(side) for side in rows] == [2 * len(train), 2 * len(test)]


def test_the_report_counts_rows_and_tasks_of_both_splits(tmp_path: Path) -> None:
    report = curate_episodes(tmp_path, *many(10), test_size=0.5)
    assert sum(report.tasks.values()) == 10 and set(report.tasks) == {"train", "test"}
    assert report.rows == {side: 2 * count for side, count in report.tasks.items()}


def test_pairs_are_split_by_task_too(tmp_path: Path) -> None:
    some = [
        attempt(f"{task}{reward}", reward, task=f"{task}") for task in range(9) for reward in (0, 1)
    ]
    train, test = split_tasks(tmp_path, *some, to="dpo", test_size=0.3)
    assert not train & test and len(train | test) == 9 and test


def test_near_duplicates_are_in_the_same_split(tmp_path: Path) -> None:
    animals = ("young", "old", "red", "shy", "sly", "fat", "sad", "mad")
    fables = [attempt_at(name, FABLE.format(name), task=name) for name in animals[:4]]
    others = [attempt_at(f"{n}", f"How many {n} of {n * 7} birds?", task=f"{n}") for n in range(30)]
    for seed in range(4):
        folder = tmp_path / str(seed)
        train, test = split_tasks(folder, *fables, *others, test_size=0.5, seed=seed)
        assert {"young", "old", "red", "shy"} <= train or {"young", "old", "red", "shy"} <= test
    report = curate_episodes(tmp_path / "report", *fables, *others, test_size=0.5)
    assert report.families == 3


@pytest.mark.parametrize("test_size", [0.1, 0.05, 0.333])
def test_the_test_split_has_the_fraction_of_the_tasks(tmp_path: Path, test_size: float) -> None:
    for seed in range(3):
        some = many(100, 1)
        _, test = split_tasks(tmp_path / f"{seed}", *some, test_size=test_size, seed=seed)
        assert len(test) == round(test_size * 100)


def test_the_split_does_not_depend_on_the_order_of_the_tasks(tmp_path: Path) -> None:
    split = split_tasks(tmp_path / "one", *many(20), test_size=0.3)
    assert split == split_tasks(tmp_path / "two", *reversed(many(20, 3)), test_size=0.3)


def test_fewer_tasks_are_taken_if_near_copies_leave_no_other_split(tmp_path: Path) -> None:
    fables = [attempt_at(name, FABLE.format(name), task=name) for name in ("old", "red", "sly")]
    other = attempt_at("birds", "How many birds are there on the roof?", task="birds")
    report = curate_episodes(tmp_path, *fables, other, test_size=0.5)
    assert report.tasks == {"train": 3, "test": 1}


def test_tasks_with_the_same_prompt_are_one_family(tmp_path: Path) -> None:
    some = [
        attempt_at(f"{copy}-{number}", FABLE.format("x" * number) * 2, task=f"{copy}-{number}")
        for number in range(8)
        for copy in range(5)
    ]
    train, test = split_tasks(tmp_path, *some, test_size=0.3)
    numbers = [{name.split("-")[1] for name in side} for side in (train, test)]
    assert numbers[1] and not numbers[0] & numbers[1]


def test_another_seed_gives_another_split(tmp_path: Path) -> None:
    splits = [
        split_tasks(tmp_path / name, *many(20), test_size=0.3, seed=seed)[1]
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert splits[0] == splits[1] != splits[2]


@pytest.mark.parametrize("test", [0.000001, 0.999999])
def test_each_split_has_at_least_one_task(tmp_path: Path, test: float) -> None:
    splits = split_tasks(tmp_path, *many(5), test_size=test)
    assert sorted(map(len, splits)) == [1, 4]


@pytest.mark.parametrize("test", [0.0, 1.0, -0.1, float("nan")])
def test_test_size_must_be_between_0_and_1(tmp_path: Path, test: float) -> None:
    with pytest.raises(ConfigError, match="test_size"):
        split_tasks(tmp_path, *many(5), test_size=test)
    assert not (tmp_path / "out").exists()


def test_one_task_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot split"):
        split_tasks(tmp_path, *many(1), test_size=0.5)


def test_near_duplicates_alone_cannot_be_split(tmp_path: Path) -> None:
    fables = [attempt_at(name, FABLE.format(name)) for name in ("old", "red", "sly")]
    with pytest.raises(ConfigError, match="3 tasks are near duplicates"):
        split_tasks(tmp_path, *fables, test_size=0.5)


def test_a_line_that_only_duckdb_can_parse_does_not_stop_the_split(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *many(6), attempt("odd", messages=(user("q"), model("a"))))
    file = run / "episodes.jsonl"
    file.write_bytes(file.read_bytes().rstrip(b"}\n") + b",}\n")
    how = CurateConfig(test_size=0.5)
    assert curate([run], tmp_path / "out", how).left_out == {"unreadable": 1}


def test_the_error_names_duplicates_that_leave_nothing_to_split(tmp_path: Path) -> None:
    same = (user("Play."), model("left"))
    some = [attempt(f"e{at}", task=f"t{at}", messages=same) for at in range(8)]
    with pytest.raises(ConfigError, match=r"7 more.*`dedupe=False`"):
        curate_episodes(tmp_path, *some, test_size=0.25)
    report = curate_episodes(tmp_path, *some, test_size=0.25, dedupe=False)
    assert sum(report.rows.values()) == 8 and min(report.rows.values()) > 0
