"""What a folder is recognized as."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.data.run_folder import RunFolder
from ludus.data.stage_output import find_stage_output

EPISODE = {"stop_reason": "done"}
ROW: dict[str, Any] = {"messages": []}


def write(folder: Path, **files: object) -> Path:
    """Write files of JSON; `train_jsonl` is `train.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(json.dumps(content) + "\n")
    return folder


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"training_json": {"kind": "grpo"}, "episodes_jsonl": EPISODE}, "training"),
        ({"episodes_jsonl": EPISODE}, "run"),
        ({"run_json": {"settings": {"environment": "e"}}}, "run"),
        ({"summary_json": {"kind": "eval"}}, "evaluation"),
        ({"train_jsonl": ROW}, "dataset"),
        ({"test_jsonl": ROW}, "dataset"),
        ({"test_parquet": ROW}, None),
        ({"curation_json": {"report": {}}}, "dataset"),
        ({"run_json": {"name": "of another tool"}}, None),
        ({"summary_json": {"kind": "collect"}}, None),
        ({}, None),
    ],
)
def test_a_folder_is_recognized_by_its_files(
    tmp_path: Path, files: dict[str, object], kind: str | None
) -> None:
    output = find_stage_output(write(tmp_path / "folder", **files))
    assert (output and output.kind) == kind


def test_a_file_holds_episodes_or_rows(tmp_path: Path) -> None:
    write(tmp_path, a_jsonl=EPISODE, b_jsonl=ROW)
    run, rows = find_stage_output(tmp_path / "a.jsonl"), find_stage_output(tmp_path / "b.jsonl")
    assert run is not None and run.kind == "run" and run.episodes == tmp_path / "a.jsonl"
    assert rows is not None and rows.rows == {"train": tmp_path / "b.jsonl"}


def test_paths_are_shown_as_the_user_would_type_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "here" / "run", episodes_jsonl=EPISODE)
    write(tmp_path / "there", episodes_jsonl=EPISODE)
    monkeypatch.chdir(tmp_path / "here")
    inside, outside = find_stage_output(Path("run")), find_stage_output(Path("..") / "there")
    assert inside is not None and inside.shown_path == "run"
    assert outside is not None and outside.shown_path.endswith("there")


def test_a_run_is_complete_when_its_summary_says_so(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {"environment": "e", "agent": {"model": "m"}})
    output = find_stage_output(run.path)
    assert output is not None and (output.environment, output.model) == ("e", "m")
    assert not output.is_complete
    run.write_summary({"complete": True})
    assert output.is_complete and output.modified_at > 0


def test_a_data_set_was_changed_when_its_rows_were(tmp_path: Path) -> None:
    write(tmp_path / "data", train_jsonl="{}\n")
    output = find_stage_output(tmp_path / "data")
    assert output is not None
    assert output.modified_at == (tmp_path / "data/train.jsonl").stat().st_mtime
