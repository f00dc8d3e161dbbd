"""`--tasks FILE` of `ludus collect` and `ludus eval`."""

from __future__ import annotations

import json
from pathlib import Path

from cli.collect_cli import collect, error_line, read_episodes
from cli.curate_cli import ludus, stdout_of


def test_collect_and_eval_play_the_tasks_of_a_file(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"seed": seed}) + "\n" for seed in (3, 1, 2))
    (tmp_path / "tasks.jsonl").write_text(lines)
    stdout_of(collect("catch", "--tasks", "tasks.jsonl", "-o", "run", cwd=tmp_path))
    assert [episode.seed for episode in read_episodes(tmp_path / "run")] == [3, 1, 2]
    command = ("eval", "catch", "-c", "random", "--tasks", "tasks.jsonl", "-n", "2", "-o", "eval")
    assert ludus(*command, cwd=tmp_path).returncode == 0
    assert [episode.seed for episode in read_episodes(tmp_path / "eval" / "random")] == [3, 1]
    (tmp_path / "tasks.jsonl").write_text("seed 7\n")
    assert "tasks.jsonl:1" in error_line(collect("catch", "--tasks", "tasks.jsonl", cwd=tmp_path))
