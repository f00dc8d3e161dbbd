"""Tasks of held-out sets, and near duplicates of them, are excluded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from curation.attempts import (
    FABLE,
    attempt,
    attempt_at,
    curate_episodes,
    many,
    read_rows,
    write_run,
)
from ludus.curation import CurateConfig, curate
from ludus.data.episode import Episode
from ludus.errors import ConfigError, RunError


def held_out(folder: Path, *sources: Path, of: list[Episode]) -> tuple[list[str], dict[str, int]]:
    """Return the ids of the rows with these held-out sets, and the excluded counts."""
    run = write_run(folder / "mine", *of)
    report = curate([run], folder / "kept", CurateConfig(held_out=sources))
    return [
        row["episode_id"] for row in read_rows(folder / "kept" / "train.jsonl")
    ], report.left_out


def test_a_question_of_the_held_out_set_is_excluded_under_any_name(tmp_path: Path) -> None:
    some = [
        attempt_at(f"{copy}-{number}", f"Which is the {number}th word?", task=f"{copy}-{number}")
        for number in range(8)
        for copy in range(5)
    ]
    held_out = tmp_path / "held.jsonl"
    held_out.write_text(json.dumps({"prompt": "Which is the 3th word?"}) + "\n")
    report = curate_episodes(tmp_path, *some, held_out=(held_out,))
    assert report.left_out == {"held-out": 5}


def test_a_run_holds_out_its_tasks(tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", attempt("x", 0.0, task="task1", messages=()))
    left, why = held_out(tmp_path, other, of=many(3, 1))
    assert (left, why) == (["0-0", "2-0"], {"held-out": 1})


def test_a_data_set_holds_out_its_test_split(tmp_path: Path) -> None:
    curate_episodes(tmp_path, *many(8), test_size=0.3)
    test = {row["group_id"] for row in read_rows(tmp_path / "out" / "test.jsonl")}
    left, why = held_out(tmp_path, tmp_path / "out", of=many(8, 1))
    assert len(left) == 8 - len(test) and why == {"held-out": len(test)}


def test_a_data_set_without_a_test_split_holds_out_all_tasks(tmp_path: Path) -> None:
    curate_episodes(tmp_path, *many(2))
    left, _ = held_out(tmp_path, tmp_path / "out", of=many(4, 1))
    assert left == ["2-0", "3-0"]


@pytest.mark.parametrize("form", ["messages", "prompt", "text"])
def test_rows_of_other_tools_hold_out_near_duplicates_of_their_prompts(
    tmp_path: Path, form: str
) -> None:
    text = FABLE.format("old")
    asks = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": text}]
    row = {"messages": {"messages": asks}, "prompt": {"prompt": asks}, "text": {"prompt": text}}
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row[form]) + "\n")
    mine = [
        attempt_at("copy", FABLE.format("red")),
        attempt_at("other", "How many birds are seven birds?"),
    ]
    assert held_out(tmp_path, file, of=mine) == (["other"], {"held-out": 1})


def test_a_prompt_of_all_tasks_holds_nothing_out(tmp_path: Path) -> None:
    other = write_run(
        tmp_path / "other", attempt_at("x", "Guess the word in six tries.", task="w9")
    )
    mine = [attempt_at(f"{n}", "Guess the word in six tries.", task=f"w{n}") for n in range(8)]
    assert held_out(tmp_path, other, of=mine)[1] == {}


def test_several_held_out_sets(tmp_path: Path) -> None:
    others = [write_run(tmp_path / name, attempt("x", task=name)) for name in ("task0", "task2")]
    assert held_out(tmp_path, *others, of=many(3, 1))[0] == ["1-0"]


def test_unusable_held_out_sets_raise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="held_out"):
        held_out(tmp_path, tmp_path / "nothing", of=many(2))
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"prompt": "a"}\n\n{"text": "b"}\n')
    with pytest.raises(RunError, match=r"odd\.jsonl:3"):
        held_out(tmp_path, odd, of=many(2))
