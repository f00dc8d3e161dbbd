"""What `ludus curate` refuses: in one line, and with nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from students import student

from cli.collect_cli import error_line
from cli.curate_cli import write_run, make_episode, curate, stdout_of, kept_ids, run_without_module

EPISODES = (
    make_episode("a", turns=2),
    make_episode("b", reward=0.0),
    make_episode("c", task="fox"),
)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--where", "rward > 0.5"), "an episode has no 'rward'. Did you mean 'reward'?"),
        (("--where", "reward >="), "--where 'reward >=' is no condition in SQL"),
        (("--where", "true; drop table episodes"), "is no condition in SQL"),
        (("--where", "reward > 'high'"), "'high'"),
        (("--min-reward", "7"), "Nothing is left of 3 episodes: min-reward 3."),
        (("--min-turns", "3", "--max-turns", "2"), "Nothing is left of 3 episodes"),
        (("--top-fraction", "0"), "--top-fraction 0.0 is not above 0 and at most 1"),
        (("--top-fraction", "nan"), "--top-fraction nan"),
        (("--solve-rate", "0.9..0.1"), "--solve-rate 0.9..0.1 is no band within 0..1"),
        (("--test-size", "1.5"), "--test-size 1.5 is not between 0 and 1"),
        (("--test-size", "0.5", "--similarity-threshold", "7"), "--similarity-threshold 7"),
        (("--max-prompt-similarity", "8"), "--max-prompt-similarity 8"),
        (("--held-out", "nowhere"), "--held-out nowhere is neither a file nor a folder"),
        (("--held-out", "thesis.tex"), "thesis.tex:1 has neither messages nor a prompt"),
        (("--held-out", "run"), "Nothing is left of 3 episodes: held-out 3."),
        (("--tool-call-format", "qwen"), "There is no text form 'qwen'"),
        (("--to", "dpo", "--best-of-group"), "a pair needs two"),
        (("--to", "dpo", "--last-turn"), "--last-turn is for SFT"),
        (("--to", "dpo", "--min-margin", "-1"), "--min-margin -1.0 cannot be"),
        (("--to", "openenv", "--format", "parquet"), "--format parquet is not for --to openenv"),
        (("--to", "nemo-gym", "--student", "x"), "--student is for --to sft and dpo"),
        (("--student", "no/such-model"), "no/such-model"),
        (("--student", "run"), "run holds no tokenizer"),
        (("--push-to-hub", "rows"), "Give USER/NAME"),
        (("--push-to-hub", "ada/rows"), "run `hf auth login`, or set HF_TOKEN"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(
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
        (("--solve-rate", "0.5"), "write 0.1..0.9, or ..0.5, or 0.5.."),
        (("--to", "grpo"), "'grpo' is not one of 'sft', 'dpo'"),
        (("--format", "csv"), "'csv' is not one of 'jsonl', 'parquet'"),
        (("--min-turns", "-1"), "--min-turns"),
        (("--min-rewrad", "1"), "--min-rewrad"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_in_the_last_line(
    options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", *EPISODES)
    done = curate("run", *options, "-o", "data", cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (("nowhere",), "There is no run, file or folder 'nowhere'. `ludus runs` lists"),
        (("folder",), "There are no episodes in folder: it has no episodes.jsonl."),
        (("empty",), "There are no episodes in these runs yet."),
        (("run", "run"), "run is named twice. Name each run once."),
        (("run", "link"), "link is named twice"),
        (("run", "run/episodes.jsonl"), "run/episodes.jsonl is named twice"),
        (("thesis.tex",), "Nothing is left of 1 episodes: unreadable 1."),
    ],
)
def test_a_run_that_cannot_be_read_is_named(
    runs: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", *EPISODES)
    write_run(tmp_path / "empty")
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "folder").mkdir()
    (tmp_path / "thesis.tex").write_text("Years of work.\n")
    done = curate(*runs, "-o", "data", cwd=tmp_path)
    assert words in error_line(done) and not (tmp_path / "data").exists()


def test_a_folder_of_something_else_is_never_touched(tmp_path: Path) -> None:
    run, other = write_run(tmp_path / "run", *EPISODES), tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("Years of work.")
    for out in (run, other, run / "episodes.jsonl"):
        for more in ((), ("--overwrite",)):
            assert "Use another -o." in error_line(curate(run, *more, "-o", out))
    assert [file.name for file in other.iterdir()] == ["thesis.tex"]
    assert [file.name for file in run.iterdir()] == ["episodes.jsonl"]


def test_a_data_set_inside_of_its_run_is_one_like_any_other(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *EPISODES)
    stdout_of(curate(run, "-o", run / "data"))
    assert kept_ids(run / "data") == ["a", "b", "c"]
    stdout_of(curate(run, "--overwrite", "-o", run / "data"))


def test_a_refusal_leaves_the_data_set_that_is_there_as_it_is(tmp_path: Path) -> None:
    run, data = write_run(tmp_path / "run", *EPISODES), tmp_path / "data"
    stdout_of(curate(run, "-o", data))
    before = {file.name: file.read_bytes() for file in data.iterdir()}
    assert "Use --overwrite, or another -o." in error_line(
        curate(run, "--min-turns", "0", "-o", data)
    )
    refused = curate(run, "--min-reward", "7", "--overwrite", "-o", data)
    assert "Nothing is left" in error_line(refused)
    assert {file.name: file.read_bytes() for file in data.iterdir()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_what_may_not_be_read_or_written_is_said(tmp_path: Path) -> None:
    run, shut = write_run(tmp_path / "run", *EPISODES), tmp_path / "shut"
    shut.mkdir(mode=0o500)
    done = curate(run, "-o", shut / "data")
    assert "cannot be written: Permission denied." in error_line(done)
    (run / "episodes.jsonl").chmod(0o000)
    done = curate(run, "-o", tmp_path / "data")
    assert "episodes.jsonl cannot be read: Permission denied." in error_line(done)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("module", "options", "extra"),
    [
        ("duckdb", (), "curate"),
        ("rensa", ("--max-prompt-similarity", "0.8"), "curate"),
        ("rensa", ("--test-size", "0.5"), "curate"),
        ("datasets", ("--format", "parquet"), "curate"),
        ("transformers", ("--student", "student"), "train"),
        ("huggingface_hub", ("--push-to-hub", "ada/rows"), "hub"),
    ],
)
def test_a_missing_extra_is_one_line_with_the_way_to_install_it(
    module: str,
    options: tuple[str, ...],
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_run(tmp_path / "run", *EPISODES)
    if "student" in options:
        student().save_pretrained(tmp_path / "student")
    monkeypatch.chdir(tmp_path)
    done = run_without_module(module, "curate", "run", *options, "-o", "data")
    assert error_line(done).endswith(f"pip install 'ludus-rl[{extra}]'\n")
    assert not (tmp_path / "data").exists()
