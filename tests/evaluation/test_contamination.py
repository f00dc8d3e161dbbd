"""Exclusion of known questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.small_evaluations import attempt
from ludus.errors import ConfigError, RunError
from ludus.evaluation.pipeline import exclude_known, load_known_tasks

SYSTEM = {"role": "system", "content": "Act."}
ASKED = {"role": "user", "content": "Question 1?"}
SAID = {"role": "assistant", "content": "", "tool_calls": []}


def write_rows(file: Path, *rows: dict[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [SYSTEM, ASKED, SAID, {"role": "user", "content": "More."}]},
        {"prompt": [SYSTEM, ASKED], "chosen": [SAID], "rejected": [SAID]},
        {"prompt": "Question 1?", "completion": "1"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Question 1?"}]}]},
        {"group_id": "task 1", "messages": [{"role": "user", "content": "In other words: 1?"}]},
    ],
    ids=["conversation", "pair", "text", "parts", "task"],
)
def test_known_question_is_excluded(tmp_path: Path, row: dict[str, Any]) -> None:
    known = load_known_tasks(write_rows(tmp_path / "rows.jsonl", row))
    attempts = [attempt(place) for place in range(3)]
    assert [rest.plan_index for rest in exclude_known(attempts, known)] == [0, 2]


def test_only_the_train_split_is_known(tmp_path: Path) -> None:
    write_rows(tmp_path / "data" / "train.jsonl", {"messages": [ASKED, SAID]})
    write_rows(tmp_path / "data" / "test.jsonl", {"prompt": "Question 2?"})
    assert load_known_tasks(tmp_path / "data") == {"Question 1?"}


def test_common_prompt_excludes_only_known_tasks(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "Guess."}], "group_id": "task 4"}
    known = load_known_tasks(write_rows(tmp_path / "rows.jsonl", row))
    attempts = [attempt(place, prompt="Guess.") for place in range(5)]
    assert [rest.plan_index for rest in exclude_known(attempts, known)] == [0, 1, 2, 3]


def test_prompts_are_common_per_environment(tmp_path: Path) -> None:
    guess = {"environment": "wordle", "group_id": "other", "prompt": "Guess."}
    known = load_known_tasks(write_rows(tmp_path / "rows.jsonl", guess, {"prompt": "Question 9?"}))
    hidden = [attempt(at, prompt="Guess.", environment="wordle") for at in range(4)]
    mixed = [*hidden, *(attempt(place, environment="sums") for place in range(4, 20))]
    assert [rest.plan_index for rest in exclude_known(mixed, known)] == [*range(9), *range(10, 20)]


def test_folder_without_rows_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.jsonl or episodes\.jsonl"):
        load_known_tasks(tmp_path)
    with pytest.raises(ConfigError, match="`exclude_tasks_in`"):
        load_known_tasks(tmp_path / "nothing.jsonl")


def test_invalid_row_is_named_by_line(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", {"prompt": "a"}, {"text": "b"})
    with pytest.raises(RunError, match=r"rows\.jsonl:2 has neither"):
        load_known_tasks(file)
