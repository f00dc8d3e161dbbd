"""`ludus curate` and `import`: signals, a kill, a full disk, and the bar on a terminal."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
from pathlib import Path

import pytest
from ludus_process import LUDUS, run_on_terminal, start_ludus
from world import wait_for_work, wait_until

from cli.collect_cli import CLEAN_ENV, error_line
from cli.curate_cli import (
    curate,
    ludus,
    make_episode,
    read_rows,
    stdout_of,
    write_large_run,
    write_run,
)

SLOW_FILTER = ("--where", "len(list_filter(range(3000 + turns), lambda x: x % 7 = 3)) > 0")
"""A filter that keeps DuckDB busy for seconds."""


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 130, "Interrupted.\n"), (signal.SIGTERM, 143, "")],
)
@pytest.mark.parametrize("step", ["reading", "writing"])
def test_a_signal_stops_curate_and_writes_nothing(
    step: str, number: signal.Signals, code: int, words: str, tmp_path: Path
) -> None:
    run, data = write_large_run(tmp_path / "run"), tmp_path / "data"
    begun = ".curating-*/work" if step == "reading" else ".curating-*/train.jsonl"
    with start_ludus(
        "curate", run, *(SLOW_FILTER if step == "reading" else ()), "-o", data, env=CLEAN_ENV
    ) as process:
        wait_until(lambda: any(data.glob(begun)), seconds=60)
        if step == "reading":
            wait_for_work(process)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (code, "", words)
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_import_and_writes_nothing(number: signal.Signals, tmp_path: Path) -> None:
    source, out = write_large_run(tmp_path / "source"), tmp_path / "run"
    with start_ludus(
        "import", "messages", source / "episodes.jsonl", "-o", out, env=CLEAN_ENV
    ) as process:
        wait_until(lambda: any(out.glob(".importing-*/episodes.jsonl")), seconds=60)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert [file.name for file in tmp_path.iterdir()] == ["source"]


def test_curate_works_after_a_kill(tmp_path: Path) -> None:
    run, data = write_large_run(tmp_path / "run", 6_000), tmp_path / "data"
    with start_ludus("curate", run, "-o", data, env=CLEAN_ENV) as process:
        wait_until(lambda: any(data.glob(".curating-*/train.jsonl")), seconds=60)
        process.kill()
        process.communicate()
    assert not [file for file in data.iterdir() if not file.name.startswith(".")]
    stdout_of(curate(run, "-o", data))
    assert len(read_rows(data)) == 6_000
    assert {file.name for file in data.iterdir()} == {"README.md", "curation.json", "train.jsonl"}


def test_import_works_after_a_kill(tmp_path: Path) -> None:
    source, out = write_large_run(tmp_path / "source", 3_000), tmp_path / "run"
    command = ("import", "messages", source / "episodes.jsonl", "-o", out)
    with start_ludus(*command, env=CLEAN_ENV) as process:
        wait_until(lambda: any(out.glob(".importing-*/episodes.jsonl")), seconds=60)
        process.kill()
        process.communicate()
    assert not (out / "run.json").exists()
    assert "3,000 episodes" in stdout_of(ludus(*command))
    assert not [file for file in out.iterdir() if file.name.startswith(".")]


def limit_file_size() -> None:
    """Let no file grow beyond a few kilobytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


@pytest.mark.parametrize(
    "command", [("curate", "run"), ("import", "messages", "run/episodes.jsonl")]
)
def test_a_full_disk_is_one_line_and_writes_nothing(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    write_run(
        tmp_path / "run", *(make_episode(f"n{at}", task=f"t{at}", turns=3) for at in range(60))
    )
    done = subprocess.run(
        [*LUDUS, *command, "-o", "out"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **CLEAN_ENV, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"},
        preexec_fn=limit_file_size,
    )
    assert "File too large" in error_line(done)
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_a_terminal_shows_a_bar_per_step_and_then_the_table(
    tmp_path: Path,
) -> None:
    run, data = write_large_run(tmp_path / "run", 6_000), tmp_path / "data"
    code, drawn = run_on_terminal("curate", run, "-o", data, env=CLEAN_ENV)
    assert code == 0
    drawn = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", drawn)
    bars = re.split(r"[\r\n]+", drawn)
    assert [bar for bar in bars if "writing rows" in bar and "━" in bar and "/6,000" in bar]
    assert "train: 6,000 rows of 1,500 tasks" in drawn.partition("duplicate")[2]


def test_a_pipe_gets_the_result_only(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", make_episode("a"), make_episode("b"))
    done = curate(run, "-o", tmp_path / "data")
    assert "\x1b" not in stdout_of(done) and done.stdout.startswith("step ")
    assert done.stdout.endswith(f"data set: {tmp_path / 'data'}\n")
