"""`--tasks FILE`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

from cli.collecting import collect, complaint, read
from cli.curating import fine, ludus


def test_candidates_and_the_collector_play_the_tasks_of_a_file(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"seed": seed}) + "\n" for seed in (3, 1, 2))
    (tmp_path / "tasks.jsonl").write_text(lines)
    fine(collect("catch", "--tasks", "tasks.jsonl", "-o", "run", cwd=tmp_path))
    assert [episode.seed for episode in read(tmp_path / "run")] == [3, 1, 2]
    command = ("eval", "catch", "-c", "random", "--tasks", "tasks.jsonl", "-n", "2", "-o", "eval")
    assert ludus(*command, cwd=tmp_path).returncode == 0
    assert [episode.seed for episode in read(tmp_path / "eval" / "random")] == [3, 1]
    (tmp_path / "tasks.jsonl").write_text("seed 7\n")
    assert "tasks.jsonl:1 is not JSON" in complaint(
        collect("catch", "--tasks", "tasks.jsonl", cwd=tmp_path)
    )
