"""The card and the metadata of a data set."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from curation.attempts import attempt, call, model, read_rows, user, write_run
from ludus.curation import CurateConfig, CurateReport, curate
from ludus.data.episode import StopReason
from ludus.data.episode_reader import read_resume_index
from ludus.errors import RunError

EVERYTHING = CurateConfig(
    where="reward < 2 OR environment = 'a|b'",
    min_reward=0.1,
    top_fraction=0.9,
    test_size=0.3,
)


def curate_with_card(
    folder: Path, config: CurateConfig = EVERYTHING, **options: Any
) -> tuple[CurateReport, str]:
    """Curate a run, and return the report and the card."""
    run = write_run(
        folder / "ru`n | [1]",
        *(attempt(f"{n}", n / 20) for n in range(20)),
        attempt("broken", None, stop_reason=StopReason.BROKEN),
        attempt("torn", messages=(user("q"), model("", call("f", "{"))), malformed_calls=1),
        attempt("copy", 0.5, messages=(user("What is task of 10?"), model("It is 10."))),
    )
    with (run / "episodes.jsonl").open("ab") as file:
        file.write(b"nope\n")
    report = curate([run], folder / "out", config, **options)
    return report, (folder / "out" / "README.md").read_text()


def cells(card: str) -> list[list[str]]:
    """Return the rows of the card's first table, without its head."""
    lines = [line for line in card.split("## ")[1].splitlines() if line.startswith("|")]
    split = (re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[2:])
    return [[cell.strip().replace("\\|", "|") for cell in line] for line in split]


def test_the_card_has_a_table_of_all_steps(tmp_path: Path) -> None:
    report, card = curate_with_card(tmp_path)
    first, *steps = cells(card)
    assert first == ["episodes read", "", "24", ""]
    table = [(name.strip("`"), int(left), int(gone)) for name, _, left, gone in steps]
    assert table == [(step.reason, step.remaining, step.removed) for step in report.steps]
    assert {step.reason for step in report.steps} >= {"unreadable", "where", "top-fraction"}


def test_steps_describe_their_conditions(tmp_path: Path) -> None:
    report, _ = curate_with_card(tmp_path)
    details = {step.reason: step.detail for step in report.steps}
    assert details["where"] == EVERYTHING.where
    assert details["min-reward"] == "reward >= 0.1"
    assert "0.9" in details["top-fraction"]


def test_the_metadata_file_has_report_and_settings(tmp_path: Path) -> None:
    report, card = curate_with_card(tmp_path)
    about = json.loads((tmp_path / "out" / "curation.json").read_text())
    assert about["report"] == json.loads(json.dumps(report.as_json()))
    assert about["settings"]["min_reward"] == 0.1
    assert about["settings"]["held_out"] == [] and about["version"] == 1
    assert json.loads(card.split("```json\n")[1].split("\n```")[0]) == about["settings"]


def test_the_front_matter_names_files_and_columns(tmp_path: Path) -> None:
    report, card = curate_with_card(tmp_path)
    front = yaml.safe_load(card.split("---\n")[1])
    files = front["configs"][0]["data_files"]
    assert files == [
        {"split": "train", "path": "train.jsonl"},
        {"split": "test", "path": "test.jsonl"},
    ]
    columns = [feature["name"] for feature in front["dataset_info"]["features"]]
    assert columns == list(read_rows(tmp_path / "out" / "train.jsonl")[0])
    assert front["size_categories"] == ["n<1K"] and "ludus" in front["tags"]
    assert set(report.rows) == {"train", "test"}


@pytest.mark.parametrize("to", ["sft", "dpo", "episodes", "openenv", "nemo-gym", "nemo-gym-input"])
def test_every_kind_of_row_has_a_card(tmp_path: Path, to: Any) -> None:
    pair = [attempt("low", 0.0, task="t"), attempt("high", 1.0, task="t")]
    curate([write_run(tmp_path / "run", *pair)], tmp_path / "out", CurateConfig(to=to))
    card = (tmp_path / "out" / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["tags"][-1] == to
    assert ("## Usage" in card) == (to in ("sft", "dpo", "episodes"))


def test_unreadable_lines_are_listed(tmp_path: Path) -> None:
    report, card = curate_with_card(tmp_path)
    assert len(report.unreadable) == 1 and report.unreadable[0].endswith("episodes.jsonl:24")
    assert report.unreadable[0].rpartition("/")[2] in card


def test_the_card_has_split_and_rewards(tmp_path: Path) -> None:
    report, card = curate_with_card(tmp_path)
    assert f"{report.tasks['test']} in test" in card
    low, high = report.rewards["min"], report.rewards["max"]
    assert f"{low:.3f} to {high:.3f}" in card


def test_the_mean_on_the_card_is_the_mean_reward_of_the_run(tmp_path: Path) -> None:
    rewards = {"a": (0.0, 0.0, 0.0), "b": (0.5,), "c": (1.0, 0.25)}
    run = write_run(
        tmp_path / "run",
        *(
            attempt(f"{task}{number}", reward, task=task)
            for task, attempts in rewards.items()
            for number, reward in enumerate(attempts)
        ),
        attempt("broken", None, task="c", stop_reason=StopReason.BROKEN),
    )
    report = curate([run], tmp_path / "out", CurateConfig())
    listed = read_resume_index(run / "episodes.jsonl").totals.rewards.estimate()
    assert listed is not None and report.rewards["mean"] == listed.value == 0.375
    assert "a mean over tasks of 0.375" in (tmp_path / "out" / "README.md").read_text()


def test_the_command_is_on_the_card(tmp_path: Path) -> None:
    _, card = curate_with_card(tmp_path, command="ludus curate runs/a -o ```out")
    assert "````bash\nludus curate runs/a -o ```out\n````" in card
    assert "ludus curate" not in curate_with_card(tmp_path / "again")[1]


def test_explain_writes_a_reason_for_each_excluded_episode(tmp_path: Path) -> None:
    report, _ = curate_with_card(tmp_path, CurateConfig(), explain=True)
    left_out = read_rows(tmp_path / "out" / "left_out.jsonl")
    assert [(line["line"], line["episode_id"], line["reason"]) for line in left_out] == [
        (21, "broken", "broken"),
        (22, "torn", "malformed call"),
        (23, "copy", "duplicate"),
        (24, None, "unreadable"),
    ]
    assert {line["file"] for line in left_out} == {str(tmp_path / "ru`n | [1]" / "episodes.jsonl")}
    assert report.kept == 20


def test_the_same_call_writes_again_and_another_one_needs_overwrite(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *(attempt(f"{n}", n / 20) for n in range(20)))
    for _ in range(2):
        curate([run], tmp_path / "out", CurateConfig(min_reward=0.2, test_size=0.3))
    with pytest.raises(RunError, match="`overwrite`"):
        curate([run], tmp_path / "out", CurateConfig())
