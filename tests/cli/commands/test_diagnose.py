"""`ludus diagnose`: its table, its JSON and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from diagnose.runs import Sample, episode, level, ramp, write
from ludus_process import run_ludus

from cli.collect_cli import error_line
from cli.in_process import Result, Runner
from ludus.data.training_log import sparkline
from ludus.diagnose import read_run
from ludus.diagnose.reward_change import format_change_with_interval
from ludus.errors import RunError


def diagnose(*arguments: str | Path) -> Result:
    return Runner(env={"COLUMNS": "200"}).invoke(["diagnose", *map(str, arguments)])


def error_message(run: Path) -> str:
    done = diagnose(run)
    assert isinstance(done.exception, RunError) and done.stdout == ""
    assert "\n" not in str(done.exception)
    return str(done.exception)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(Sample(), tmp_path_factory.mktemp("runs") / "healthy")


def test_a_run_is_printed_as_table_curve_and_verdicts(run: Path) -> None:
    done = run_ludus("diagnose", str(run))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert {"GRPO", "models/student", "wordle"} <= {*lines[0].split()}
    rows = {line[:15].strip(): line[15:].strip() for line in lines[1:14]}
    assert rows["steps"].startswith("150; ") and " 15 " in rows["steps"]
    change = read_run(run).diagnose().reward
    assert change is not None and rows["reward change"] == format_change_with_interval(change)
    assert rows["zero variance"].endswith(" %") and rows["format"] == "97 % -> 97 %"
    assert rows["length"].endswith(" tokens") and "step 0.5 s" in rows["time"]
    assert rows[""][0] in "▁▂▃" and rows[""][-1] in "▆▇"
    assert lines[-3] == "learned" and lines[-1].startswith("  -> ")


def test_the_buckets_of_a_curriculum_are_printed(tmp_path: Path) -> None:
    folder = write(Sample(steps=20), tmp_path / "run")
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in log:
        line |= {"curriculum/max_terms=3/groups": 6.0, "curriculum/max_terms=3/success": 0.5}
        line |= {"curriculum/max_terms=4/groups": 2.0, "curriculum/max_terms=4/success": 0.125}
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    rows = [" ".join(line.split()) for line in diagnose(folder).stdout.splitlines()]
    assert "max_terms=3 120 groups, success 50 % -> 50 %" in rows
    assert "max_terms=4 40 groups, success 12 % -> 12 %" in rows
    facts = json.loads(diagnose(folder, "--json").stdout)
    assert [bucket["groups"] for bucket in facts["curriculum"]] == [120, 40]


def test_a_run_as_json(run: Path) -> None:
    done = diagnose(run, "--json")
    facts = json.loads(done.stdout)
    assert (facts["run"], facts["steps"], facts["planned"]) == (str(run), 150, 150)
    assert facts["finished"] is True and facts["window"] == 15
    low, high = facts["reward"]["interval"]
    assert low < facts["reward"]["delta"] < high
    (verdict,) = facts["verdicts"]
    assert (verdict["name"], verdict["kind"]) == ("learned", "good")
    assert facts["metrics"]["format"] == [pytest.approx(0.97, abs=0.05)] * 2
    assert facts["seconds"]["step"] == pytest.approx(0.5, abs=0.05)


def test_a_mixture_has_a_line_for_each_environment(tmp_path: Path) -> None:
    success = {"wordle": ramp((0.0, 0.2), (1.0, 0.7)), "catch": level(0.98)}
    output = diagnose(write(Sample(success, luck=0.02), tmp_path / "mix")).stdout
    assert "wordle,catch" in output.splitlines()[0].split()
    assert "\ncatch  " in output and "\nwordle  " in output
    assert "too easy: catch" in output


def test_an_unfinished_run_is_diagnosed(tmp_path: Path) -> None:
    folder = write(Sample(steps=40), tmp_path / "run", settings={"steps": 200}, metrics=None)
    for name in ("log.jsonl", "episodes.jsonl"):
        (folder / name).write_bytes((folder / name).read_bytes()[:-20])
    done = diagnose(folder)
    assert done.exit_code == 0
    assert "39 of 200 (not finished)" in done.stdout


def test_a_finished_run_has_all_steps_whatever_its_last_lines_hold(tmp_path: Path) -> None:
    """Steps that learn from episodes again log no reward; others may not be logged at all."""
    folder = write(Sample(steps=30), tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for again in lines[1::2]:
        for key in ("reward", "zero_variance", "unscored"):
            del again[key]
    for logged in (lines, lines[:-3]):
        (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logged))
        assert "steps          30; the first 5 logged" in diagnose(folder).stdout
        assert json.loads(diagnose(folder, "--json").stdout)["steps"] == 30


def test_reward_functions_are_not_listed_as_environments(tmp_path: Path) -> None:
    sample = Sample({"wordle": level(0.4), "catch": level(0.6)}, steps=20)
    folder = write(sample, tmp_path / "run", settings={"steps": 20, "reward_funcs": ["mine:brief"]})
    _, attempts = sample.draw()
    episodes = [
        episode(one, reward=(one.reward or 0.0) + 3, rewards={one.environment: one.reward or 0.0})
        for one in attempts
    ]
    (folder / "episodes.jsonl").write_bytes(b"".join(one.to_line() for one in episodes))
    parts = {part.name: part for part in read_run(folder).diagnose().parts}
    assert parts["wordle"].initial < parts["catch"].initial < 1


def test_held_out_rewards_are_printed(tmp_path: Path) -> None:
    folder = write(Sample(steps=20), tmp_path / "run")
    with (folder / "log.jsonl").open("a") as log:
        log.write('{"step":10,"eval_reward":0.25}\n{"step":20,"eval_reward":0.5}\n')
    assert "0.250 (step 10) -> 0.500 (step 20)" in diagnose(folder).stdout


def test_a_run_without_episodes_is_diagnosed_from_its_log(tmp_path: Path) -> None:
    folder = write(Sample(), tmp_path / "run")
    (folder / "episodes.jsonl").unlink()
    output = diagnose(folder).stdout
    reward = output.splitlines()[2]
    assert reward.startswith("reward change ") and "interval" not in reward
    assert "episodes.jsonl" in output


def test_control_characters_in_names_are_escaped(tmp_path: Path) -> None:
    folder = write(Sample({"a\x1b[2J[bold]": level(0.5), "b": level(0.98)}), tmp_path / "run")
    output = diagnose(folder).stdout
    assert "\x1b" not in output and "[bold]" in output


def test_no_folder_is_one_line(tmp_path: Path) -> None:
    done = run_ludus("diagnose", str(tmp_path / "nowhere"))
    assert "nowhere" in error_line(done)


def test_a_folder_without_a_training_is_rejected(tmp_path: Path) -> None:
    assert "training.json" in error_message(tmp_path)
    (tmp_path / "training.json").write_text("{")
    assert "training.json" in error_message(tmp_path)


def test_another_kind_of_training_is_rejected(tmp_path: Path) -> None:
    output = error_message(write(Sample(steps=3), tmp_path / "run", kind="sft"))
    assert "sft" in output


@pytest.mark.parametrize("log", [None, "", '{"step": 1, "los'], ids=["none", "empty", "torn"])
def test_a_run_without_steps_is_rejected(log: str | None, tmp_path: Path) -> None:
    folder = write(Sample(steps=1), tmp_path / "run")
    (folder / "log.jsonl").unlink()
    if log is not None:
        (folder / "log.jsonl").write_text(log)
    assert str(folder) in error_message(folder)


def test_sparkline_scales_to_a_given_range() -> None:
    assert sparkline([0.0, 0.5, 1.0], low=0.0, high=2.0) == "▁▃▅"
    assert sparkline([2.0] * 5, low=2.0, high=2.0) == "▁▁▁▁▁"
    assert sparkline([0.5], low=0.0, high=1.0) == "▅"
    assert len(sparkline([0.5] * 500, low=0.0, high=1.0, width=60)) == 60
