"""`ludus curate`: filters, row options, file formats and the report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.curate_cli import (
    card_steps,
    curate,
    kept_ids,
    ludus,
    make_episode,
    printed_steps,
    read_metadata,
    read_rows,
    stdout_of,
    write_run,
)
from ludus.data.episode import Episode

EPISODES = (
    make_episode("a", task="owl", reward=1.0, turns=2),
    make_episode("b", task="owl", reward=0.9, turns=5),
    make_episode("c", task="owl", reward=0.0, turns=1),
    make_episode("d", task="fox", reward=0.8, turns=4),
    make_episode("e", task="fox", reward=0.8, turns=3),
    make_episode("f", task="bee", reward=1.0, turns=1),
    make_episode("g", task="bee", reward=1.0, turns=6),
    make_episode("h", task="net", reward=1.0, turns=1, environment="catch"),
    make_episode("i", task="net", reward=None, turns=1, environment="catch"),
)
"""Three tasks of wordle and one of catch; the last episode is unscored."""


def write_example_run(folder: Path) -> Path:
    return write_run(folder / "run", *EPISODES)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), "abcdefgh"),
        (
            (
                "--to",
                "sft",
                "--where",
                "reward >= 0.8 and turns between 1 and 4 and environment = 'wordle'",
            ),
            "adef",
        ),
        (("--min-reward", "0.9"), "abfgh"),
        (("--best-of-group",), "aefh"),
        (("--top-fraction", "0.3"), "afgh"),
        (("--solve-rate", "0.1..0.9"), "abc"),
        (("--solve-rate", "..0.9", "--solved-at", "0.8"), "abc"),
        (("--solve-rate", "0.5.."), "fgh"),
        (("--keep-unscored",), "abcdefghi"),
        (("--min-reward", "0.8", "--where", "turns <= 5", "--best-of-group"), "aefh"),
    ],
)
def test_filters_select_the_episodes_that_become_rows(
    options: tuple[str, ...], names: str, tmp_path: Path
) -> None:
    run, data = write_example_run(tmp_path), tmp_path / "data"
    stdout_of(curate(run, *options, "-o", data))
    assert kept_ids(data) == list(names)


def test_output_card_and_json_report_the_same_counts(
    tmp_path: Path,
) -> None:
    run, data = write_example_run(tmp_path), tmp_path / "data"
    command = (run, "--min-reward", "0.8", "--best-of-group", "--test-size", "0.4", "-o", data)
    printed = printed_steps(stdout_of(curate(*command)))
    assert ("unscored", 1, 8) in printed and ("min-reward", 1, 7) in printed
    assert printed[-1] == ("best-of-group", 3, 4)
    assert printed == card_steps(data)
    report = read_metadata(data)["report"]
    assert printed == [
        (step["reason"], step["removed"], step["remaining"]) for step in report["steps"]
    ]
    printed_report = json.loads(stdout_of(curate(*command, "--overwrite", "--json")))
    assert printed_report == {"folder": str(data), **report}
    assert report["kept"] + sum(report["left_out"].values()) == report["episodes"] == 9
    assert report["rows"] == {"train": len(read_rows(data)), "test": len(read_rows(data, "test"))}


def test_a_row_has_prompt_tool_calls_and_tools(tmp_path: Path) -> None:
    data = tmp_path / "data"
    stdout_of(curate(write_example_run(tmp_path), "-o", data))
    row = read_rows(data)[0]
    assert [message["role"] for message in row["messages"][:4]] == [
        *("system", "user", "assistant", "tool")
    ]
    assert row["messages"][2]["tool_calls"][0]["function"]["arguments"] == {"word": "a0"}
    assert row["tools"] == list(EPISODES[0].tools)


def test_rows_without_reasoning(tmp_path: Path) -> None:
    run, data = write_example_run(tmp_path), tmp_path / "data"
    stdout_of(curate(run, "--no-reasoning", "-o", data))
    output = json.dumps(read_rows(data))
    assert "is noted" in output and "Maybe" not in output


def test_pairs_are_best_against_worst_or_all(tmp_path: Path) -> None:
    run, data = write_example_run(tmp_path), tmp_path / "data"
    stdout_of(curate(run, "--to", "dpo", "-o", data))
    assert [(row["chosen_id"], row["rejected_id"]) for row in read_rows(data)] == [("a", "c")]
    (row,) = read_rows(data)
    assert row["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"word": "a0"}
    stdout_of(curate(run, "--to", "dpo", "--pairs", "all", "--overwrite", "-o", data))
    pairs = [(row["chosen_id"], row["rejected_id"]) for row in read_rows(data)]
    assert pairs == [("a", "b"), ("a", "c"), ("b", "c")]


def test_episodes_come_out_as_they_went_in(tmp_path: Path) -> None:
    run, data = write_example_run(tmp_path), tmp_path / "data"
    stdout_of(curate(run, "--to", "episodes", "--min-reward", "1", "-o", data))
    lines = (data / "train.jsonl").read_bytes().splitlines()
    wanted = [each for each in EPISODES if each.reward == 1.0]
    assert [Episode.from_line(line) for line in lines] == wanted


def test_the_test_split_stays_held_out(tmp_path: Path) -> None:
    names = [f"word{number} of page {number * 7}" for number in range(12)]
    run = write_run(
        tmp_path / "run", *(make_episode(f"n{at}", task=name) for at, name in enumerate(names))
    )
    data, other = tmp_path / "data", tmp_path / "other"
    output = stdout_of(curate(run, "--test-size", "0.3", "-o", data))
    train, test = kept_ids(data), [row["episode_id"] for row in read_rows(data, "test")]
    assert test and not set(train) & set(test) and len(train) + len(test) == 12
    assert f"train: {len(train)} rows" in output and f"test: {len(test)} row" in output
    stdout_of(curate(run, "--held-out", data / "test.jsonl", "-o", other))
    assert kept_ids(other) == train


def test_explain_lists_every_removed_episode(tmp_path: Path) -> None:
    run, data = write_example_run(tmp_path), tmp_path / "data"
    stdout_of(curate(run, "--min-reward", "0.9", "--explain", "-o", data))
    left_out = [json.loads(line) for line in (data / "left_out.jsonl").read_text().splitlines()]
    reasons = {each["episode_id"]: each["reason"] for each in left_out}
    assert reasons == {**dict.fromkeys("cde", "min-reward"), "i": "unscored"}
    assert {each["line"] for each in left_out if each["episode_id"] == "i"} == {9}


def test_overwrite_replaces_the_data_set_and_keeps_other_files(
    tmp_path: Path,
) -> None:
    run, data = write_example_run(tmp_path), tmp_path / "data"
    stdout_of(curate(run, "--test-size", "0.3", "--explain", "-o", data))
    (data / "notes.txt").write_text("mine")
    stdout_of(curate(run, "--overwrite", "-o", data))
    assert {file.name for file in data.iterdir()} == {
        *("README.md", "curation.json", "train.jsonl", "notes.txt")
    }


def test_a_partially_written_line_is_reported_and_skipped(tmp_path: Path) -> None:
    run, data = write_example_run(tmp_path), tmp_path / "data"
    with (run / "episodes.jsonl").open("ab") as file:
        file.write(make_episode("j").to_line()[:200])
    output = stdout_of(curate(run, "-o", data))
    assert f"unreadable: {run / 'episodes.jsonl'}:10" in output
    assert printed_steps(output)[0] == ("unreadable", 1, 9) and kept_ids(data) == list("abcdefgh")


def test_several_runs_are_curated_through_links_and_odd_names(tmp_path: Path) -> None:
    one = write_run(tmp_path / "it's [a] run*", make_episode("a"), make_episode("b", task="fox"))
    two = write_run(tmp_path / "two", make_episode("a"), make_episode("c", task="bee"))
    (tmp_path / "link").symlink_to(two)
    data = tmp_path / "data [1]"
    stdout_of(curate(one, tmp_path / "link", "-o", data))
    assert kept_ids(data) == ["a", "b", "c"]


@pytest.mark.parametrize("command", ["curate", "import"])
def test_help_imports_nothing_heavy(command: str) -> None:
    script = (
        f"import sys; sys.argv = ['ludus', {command!r}, '--help']\n"
        "from ludus.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('duckdb', 'datasets', 'rensa', 'transformers', 'torch')\n"
        "print([module for module in heavy if module in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]" and f"ludus {command} " in done.stdout
    assert "Example" in done.stdout
    assert "--output-dir" in done.stdout and ludus(command).returncode == 2
