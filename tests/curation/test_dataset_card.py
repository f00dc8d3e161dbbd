"""What a data set says about itself: the same for people, for programs and for the Hub."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from curation.attempts import attempt, call, model, rows, run_of, user
from ludus.curation import CurateConfig, CurateReport, FilterConfig, curate
from ludus.data.episode import StopReason

EVERYTHING = CurateConfig(
    selection=FilterConfig(
        where="reward < 2 OR environment = 'a|b'", min_reward=0.1, max_turns=3, top_fraction=0.9
    ),
    near_prompts=0.8,
    near_completions=0.8,
    test=0.3,
)


def made(folder: Path, curation: CurateConfig = EVERYTHING, **how: Any) -> tuple[CurateReport, str]:
    """A report, and the card that was written with it."""
    run = run_of(
        folder / "ru`n | [1]",
        *(attempt(f"{n}", n / 20) for n in range(20)),
        attempt("broken", None, stop_reason=StopReason.BROKEN),
        attempt("torn", messages=(user("q"), model("", call("f", "{"))), malformed_calls=1),
        attempt("copy", 0.5, messages=(user("What is task of 10?"), model("It is 10."))),
    )
    with (run / "episodes.jsonl").open("ab") as file:
        file.write(b"nope\n")
    report = curate([run], folder / "out", curation, **how)
    return report, (folder / "out" / "README.md").read_text()


def cells(card: str) -> list[list[str]]:
    """The lines of the card's first table, without its head."""
    lines = [line for line in card.split("## ")[1].splitlines() if line.startswith("|")]
    split = (re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[2:])
    return [[cell.strip().replace("\\|", "|") for cell in line] for line in split]


def test_the_table_of_the_card_is_the_steps_of_the_report(tmp_path: Path) -> None:
    report, card = made(tmp_path)
    first, *steps = cells(card)
    assert first == ["episodes read", "", "24", ""]
    told = [(name.strip("`"), int(left), int(gone)) for name, _, left, gone in steps]
    assert told == [(step.reason, step.left, step.removed) for step in report.steps]
    assert {step.reason for step in report.steps} >= {"unreadable", "where", "near-prompt"}


def test_every_step_that_was_asked_for_says_what_was_asked(tmp_path: Path) -> None:
    report, _ = made(tmp_path)
    details = {step.reason: step.detail for step in report.steps}
    assert details["where"] == EVERYTHING.selection.where
    assert details["min-reward"] == "reward >= 0.1" and details["max-turns"] == "turns <= 3"
    assert details["top-fraction"] == "the best 0.9 of each environment"


def test_what_programs_read_is_the_report_and_the_settings(tmp_path: Path) -> None:
    report, card = made(tmp_path)
    about = json.loads((tmp_path / "out" / "curation.json").read_text())
    assert about["report"] == json.loads(json.dumps(report.as_json()))
    assert about["settings"]["selection"]["min_reward"] == 0.1
    assert about["settings"]["held_out"] == [] and about["version"] == 1
    assert json.loads(card.split("```json\n")[1].split("\n```")[0]) == about["settings"]


def test_the_front_matter_is_yaml_that_names_the_files_and_the_columns(tmp_path: Path) -> None:
    report, card = made(tmp_path)
    front = yaml.safe_load(card.split("---\n")[1])
    files = front["configs"][0]["data_files"]
    assert files == [
        {"split": "train", "path": "train.jsonl"},
        {"split": "test", "path": "test.jsonl"},
    ]
    columns = [feature["name"] for feature in front["dataset_info"]["features"]]
    assert columns == list(rows(tmp_path / "out" / "train.jsonl")[0])
    assert front["size_categories"] == ["n<1K"] and "ludus" in front["tags"]
    assert front["pretty_name"].startswith("Rows for supervised fine-tuning from ")
    assert set(report.rows) == {"train", "test"}


@pytest.mark.parametrize("to", ["sft", "dpo", "episodes", "openenv", "nemo-gym", "nemo-gym-input"])
def test_every_kind_of_row_has_a_card(tmp_path: Path, to: Any) -> None:
    pair = [attempt("low", 0.0, task="t"), attempt("high", 1.0, task="t")]
    curate([run_of(tmp_path / "run", *pair)], tmp_path / "out", CurateConfig(to=to))
    card = (tmp_path / "out" / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["tags"][-1] == to
    assert ("## Load it" in card) == (to in ("sft", "dpo", "episodes"))


def test_the_first_lines_that_are_no_episode_are_named(tmp_path: Path) -> None:
    report, card = made(tmp_path)
    assert len(report.unreadable) == 1 and report.unreadable[0].endswith("episodes.jsonl:24")
    assert "Lines that are no episode (the first 1):" in card


def test_the_split_and_the_rewards_are_told(tmp_path: Path) -> None:
    report, card = made(tmp_path)
    assert f"{report.tasks['test']} to test on. No task is on both sides." in card
    low, high = report.rewards["min"], report.rewards["max"]
    assert f"Their rewards lie between {low:.3f} and {high:.3f}" in card


def test_the_command_is_on_the_card(tmp_path: Path) -> None:
    _, card = made(tmp_path, command="ludus curate runs/a -o ```out")
    assert "````bash\nludus curate runs/a -o ```out\n````" in card
    assert "ludus curate" not in made(tmp_path / "again")[1]


def test_what_was_left_out_is_told_line_by_line_where_it_is_asked_for(tmp_path: Path) -> None:
    report, _ = made(tmp_path, CurateConfig(), explain=True)
    left_out = rows(tmp_path / "out" / "left_out.jsonl")
    assert [(told["line"], told["episode_id"], told["reason"]) for told in left_out] == [
        (21, "broken", "broken"),
        (22, "torn", "malformed call"),
        (23, "copy", "duplicate"),
        (24, None, "unreadable"),
    ]
    assert {told["file"] for told in left_out} == {str(tmp_path / "ru`n | [1]" / "episodes.jsonl")}
    assert report.kept == 20
