"""Errors of `ludus curate`: one line, and no data set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.collect_cli import error_line
from cli.curate_cli import curate, kept_ids, make_episode, run_without_module, stdout_of, write_run

EPISODES = (
    make_episode("a", turns=2),
    make_episode("b", reward=0.0),
    make_episode("c", task="fox"),
)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--where", "rward > 0.5"), "'reward'"),
        (("--where", "reward >="), "'reward >='"),
        (("--where", "true; drop table episodes"), "--where"),
        (("--where", "reward > 'high'"), "'high'"),
        (("--min-reward", "7"), "min-reward 3"),
        (("--top-fraction", "0"), "--top-fraction"),
        (("--top-fraction", "nan"), "nan"),
        (("--solve-rate", "0.9..0.1"), "--solve-rate"),
        (("--test-size", "1.5"), "--test-size"),
        (("--test-size", "0.5", "--similarity-threshold", "7"), "--similarity-threshold"),
        (("--held-out", "nowhere"), "nowhere"),
        (("--held-out", "thesis.tex"), "thesis.tex"),
        (("--held-out", "run"), "held-out 3"),
        (("--to", "dpo", "--best-of-group"), "--best-of-group"),
        (("--to", "dpo", "--min-margin", "-1"), "-1"),
    ],
)
def test_invalid_options_print_one_line_and_write_nothing(
    options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", *EPISODES)
    (tmp_path / "thesis.tex").write_text("Years of work.\n")
    env = {
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0" if "ada/rows" in options else "1",
    }
    done = curate("run", *options, "-o", "data", cwd=tmp_path, env=env)
    assert words in error_line(done)
    assert done.stdout == "" and not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--solve-rate", "0.5"), "0.1..0.9"),
        (("--to", "grpo"), '"sft", "dpo"'),
        (("--min-rewrad", "1"), "--min-rewrad"),
    ],
)
def test_an_unparsable_value_is_reported_with_exit_code_2(
    options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", *EPISODES)
    done = curate("run", *options, "-o", "data", cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (("nowhere",), "'nowhere'"),
        (("folder",), "episodes.jsonl"),
        (("empty",), "no episodes"),
        (("run", "run"), "twice"),
        (("run", "link"), "link"),
        (("run", "run/episodes.jsonl"), "run/episodes.jsonl"),
        (("thesis.tex",), "unreadable 1"),
    ],
)
def test_an_unreadable_run_is_named(runs: tuple[str, ...], words: str, tmp_path: Path) -> None:
    write_run(tmp_path / "run", *EPISODES)
    write_run(tmp_path / "empty")
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "folder").mkdir()
    (tmp_path / "thesis.tex").write_text("Years of work.\n")
    done = curate(*runs, "-o", "data", cwd=tmp_path)
    assert words in error_line(done) and not (tmp_path / "data").exists()


def test_a_folder_with_other_files_is_never_touched(tmp_path: Path) -> None:
    run, other = write_run(tmp_path / "run", *EPISODES), tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("Years of work.")
    for out in (run, other, run / "episodes.jsonl"):
        for more in ((), ("--overwrite",)):
            assert str(out) in error_line(curate(run, *more, "-o", out))
    assert [file.name for file in other.iterdir()] == ["thesis.tex"]
    assert [file.name for file in run.iterdir()] == ["episodes.jsonl"]


def test_a_data_set_can_be_inside_its_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *EPISODES)
    stdout_of(curate(run, "-o", run / "data"))
    assert kept_ids(run / "data") == ["a", "b", "c"]
    stdout_of(curate(run, "--overwrite", "-o", run / "data"))


def test_an_error_leaves_an_existing_data_set_unchanged(tmp_path: Path) -> None:
    run, data = write_run(tmp_path / "run", *EPISODES), tmp_path / "data"
    stdout_of(curate(run, "-o", data))
    before = {file.name: file.read_bytes() for file in data.iterdir()}
    assert "--overwrite" in error_line(curate(run, "--min-reward", "0", "-o", data))
    assert "min-reward 3" in error_line(curate(run, "--min-reward", "7", "--overwrite", "-o", data))
    assert {file.name: file.read_bytes() for file in data.iterdir()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_missing_permissions_are_reported(tmp_path: Path) -> None:
    run, shut = write_run(tmp_path / "run", *EPISODES), tmp_path / "shut"
    shut.mkdir(mode=0o500)
    done = curate(run, "-o", shut / "data")
    assert "Permission denied" in error_line(done)
    (run / "episodes.jsonl").chmod(0o000)
    done = curate(run, "-o", tmp_path / "data")
    assert "Permission denied" in error_line(done)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("module", "options", "extra"),
    [
        ("duckdb", (), "curate"),
        ("rensa", ("--test-size", "0.5"), "curate"),
    ],
)
def test_a_missing_extra_is_one_line_with_the_install_command(
    module: str,
    options: tuple[str, ...],
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_run(tmp_path / "run", *EPISODES)
    monkeypatch.chdir(tmp_path)
    done = run_without_module(module, "curate", "run", *options, "-o", "data")
    assert error_line(done).endswith(f"pip install 'ludus-rl[{extra}]'\n")
    assert not (tmp_path / "data").exists()
