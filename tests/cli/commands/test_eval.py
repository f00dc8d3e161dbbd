"""`ludus eval`: its options and its output."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from chat_stub import Stub, chat_stub
from ludus_process import run_ludus, start_ludus
from policy.models import saved
from world import wait_until

from cli.collect_cli import CLEAN_ENV, COUNTER, read_episodes, read_summary
from cli.in_process import Result, Runner
from ludus.cli.flags import find_command, flags_of
from ludus.errors import LudusError


def evaluate(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return run_ludus("eval", *map(str, arguments), env=CLEAN_ENV, **more)


def invoke_eval(*arguments: str | Path) -> Result:
    """Run `ludus eval` in this process."""
    return Runner().invoke(["eval", *map(str, arguments)], env=CLEAN_ENV)


def stub_args(stub: Stub, *arguments: str | Path) -> list[str]:
    """Arguments that compare the stub's model with the oracle."""
    candidates = ["-c", "teacher=oracle", "-c", "openai:stub", "--llm-endpoint", stub.url]
    return [COUNTER, *candidates, *map(str, arguments)]


def test_the_table_compares_with_the_first_candidate(tmp_path: Path) -> None:
    command = ("catch", "--candidate", "chance=random", "--candidate", "oracle", "-n", "12")
    done = evaluate(*command, cwd=tmp_path)
    few, *played = done.stderr.splitlines()
    assert (done.returncode, played) == (0, ["chance plays", "oracle plays"])
    assert few.startswith("catch has too few different tasks")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["Metric", "chance", "oracle", "Delta"]
    assert lines[1].startswith("Format compliance   100.0% (75.8 to 100.0)")
    accuracy = next(line for line in lines if line.startswith("Accuracy"))
    assert " 100.0% (75.8 to 100.0) " in accuracy and " pp (+" in accuracy
    (folder,) = (tmp_path / "evals").iterdir()
    assert lines[-1] == f"evaluation: evals/{folder.name}"
    again = evaluate(*command, cwd=tmp_path)
    assert (again.stdout, again.stderr) == (done.stdout, ""), "nothing is played again"


def narrow_output(*arguments: str | Path) -> list[str]:
    """The lines printed with a width of 80 columns."""
    done = run_ludus("eval", *map(str, arguments), env={**CLEAN_ENV, "COLUMNS": "80"})
    return [line.rstrip() for line in done.stdout.splitlines()]


def test_a_narrow_terminal_puts_intervals_below_values(tmp_path: Path) -> None:
    lines = narrow_output(
        "catch", "-c", "random", "-c", "oracle", "-n", "4", "-o", tmp_path / "eval"
    )
    index = next(number for number, line in enumerate(lines) if line.startswith("Format"))
    assert lines[index].split() == ["Format", "compliance", "100.0%", "100.0%", "+0.0", "pp"]
    below = [interval.rstrip() for interval in lines[index + 1].split("(")[1:]]
    assert below == ["51.0 to 100.0)", "51.0 to 100.0)", "-49.0 to +49.0)"]


def test_many_candidates_become_rows_and_only_labels_are_folded(tmp_path: Path) -> None:
    long = "a-label-that-is-longer-than-its-column"
    who = ("-c", "random", "-c", "oracle", "-c", "third=oracle", "-c", f"{long}=oracle")
    lines = narrow_output("catch", *who, "-n", "4", "-o", tmp_path / "eval")
    # After the table there are three verdicts, the method and the folder.
    assert max(map(len, lines[:-5])) <= 80
    assert lines[0].split() == ["Metric", "Candidate", "Value", "Delta", "n"]
    assert lines[1].split() == ["Format", "compliance", "random", "100.0%", "4"]
    assert lines[3].split() == ["oracle", "100.0%", "+0.0", "pp", "4"]
    intervals = [part.strip() for part in lines[4].split("(")[1:]]
    assert intervals == ["51.0 to 100.0)", "-49.0 to +49.0)"]
    column = lines[0].index("Candidate"), lines[0].index("Value")
    assert "".join(line[slice(*column)].strip() for line in lines[7:10]).startswith(long)


def test_an_evaluation_on_other_tasks_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "eval"
    assert evaluate("catch", "-c", "random", "-n", "4", "-o", out).returncode == 0
    before = (out / "summary.json").read_bytes()
    refused = evaluate("wordle", "-c", "oracle", "-n", "4", "-o", out)
    assert refused.returncode == 1 and "environment" in refused.stderr
    assert (out / "summary.json").read_bytes() == before and not (out / "oracle").exists()
    more = evaluate("catch", "-c", "random", "-c", "oracle", "-n", "6", "-o", out)
    assert more.returncode == 0, "more candidates and episodes on the same tasks"


def test_with_json_every_line_is_json_and_the_last_is_the_summary(tmp_path: Path) -> None:
    done = invoke_eval("catch", "-c", "random", "-c", "oracle", "--json", "-o", tmp_path / "eval")
    assert (done.exit_code, done.stderr) == (0, "")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    last = events[-1]
    phases = [event["phase"] for event in events if event["event"] == "phase"]
    assert phases == ["random plays", "oracle plays"]
    assert last["folder"] == str(tmp_path / "eval") and last["settings"]["episodes"] == 50
    assert last["settings"]["seed"] == 999
    assert last["candidates"][1]["metrics"]["accuracy"]["value"] == 1.0
    assert {**read_summary(tmp_path / "eval"), "event": "summary", "folder": last["folder"]} == last


def test_a_candidates_episodes_are_a_run_that_can_be_shown(tmp_path: Path) -> None:
    invoke_eval("catch", "-c", "oracle", "-n", "2", "-o", tmp_path / "eval")
    shown = run_ludus("show", str(tmp_path / "eval" / "oracle"), "1")
    assert shown.returncode == 0 and "reward 1" in shown.stdout
    assert "oracle" in run_ludus("runs", str(tmp_path / "eval")).stdout


@pytest.mark.parametrize(("temperature", "warned"), [((), True), (("--temperature", "1"), False)])
def test_equal_attempts_of_a_greedy_model_are_announced(
    tmp_path: Path, temperature: tuple[str, ...], warned: bool
) -> None:
    model = saved(tmp_path / "model")
    candidates = ("-c", "oracle", "-c", f"tiny={model}", "--group-size", "2", "-n", "2")
    limits = ("--max-turns", "1", "--max-tokens", "2", *temperature)
    done = invoke_eval("catch", *candidates, *limits, "-o", tmp_path / "eval")
    assert done.exit_code == 0, done.stderr
    line = next((line for line in done.stderr.splitlines() if "will be equal" in line), "")
    assert ("for tiny," in line and "--temperature" in line) is warned


def test_options_select_tasks_and_the_solve_threshold(tmp_path: Path) -> None:
    with chat_stub() as stub:
        limits = (
            *("--max-turns", "3", "--max-tokens", "77", "--max-episode-tokens", "999"),
            *("--temperature", "0.5", "--no-thinking"),
        )
        task = ("--task", '{"goal": 30}', "--seed", "5", "--group-size", "2", "-n", "4")
        bar = ("--solved-at", "-1", "--system-prompt", "Add.", "-o", tmp_path / "eval")
        done = invoke_eval(*stub_args(stub, *limits, *task, *bar))
        assert done.exit_code == 0, done.stderr
        assert {(body["temperature"], body["messages"][0]["content"]) for body in stub.bodies} == {
            (0.5, "Add.")
        }
        asked = {body.get("max_completion_tokens", body.get("max_tokens")) for body in stub.bodies}
        assert asked == {77}
        off = {"enable_thinking": False}
        assert all(body["chat_template_kwargs"] == off for body in stub.bodies)
    found = read_episodes(tmp_path / "eval" / "stub")
    assert {episode.task["goal"] for episode in found} == {30}
    assert len({episode.group_id for episode in found}) == 2
    assert max(episode.turns for episode in found) <= 3
    agent = found[0].agent
    assert (agent["max_tokens"], agent["max_episode_tokens"]) == (77, 999)
    assert agent["chat_template_kwargs"] == off
    facts = read_summary(tmp_path / "eval")["candidates"][1]["metrics"]
    assert facts["accuracy"]["value"] == 1.0 and facts["reply_tokens"]["n"] == 4


def test_excluded_tasks_are_left_out_and_counted(tmp_path: Path) -> None:
    Runner().invoke(["collect", COUNTER, "-n", "40", "-o", str(tmp_path / "run")])
    data = ("--exclude-tasks-in", tmp_path / "run")
    same = ("--set", "split=train")
    done = evaluate(COUNTER, "-c", "oracle", "-n", "20", *data, *same, "-o", tmp_path / "eval")
    left_out = read_summary(tmp_path / "eval")["candidates"][0]["contaminated"]
    assert done.returncode == 0 and 0 < left_out < 20
    assert any(
        line.startswith(f"oracle: {left_out} episodes ") for line in done.stdout.splitlines()
    )
    assert [line.split() for line in done.stdout.splitlines() if line.startswith("n ")] == [
        ["n", str(20 - left_out)]
    ]


def test_invalid_options_print_one_line_and_write_nothing(tmp_path: Path) -> None:
    out = tmp_path / "eval"
    for named, arguments in {
        "'oracle'": ("catch", "-c", "oracel"),
        "'catch'": ("ctch", "-c", "random", "-c", "oracle"),
        "'no label'": ("catch", "-c", "no label=oracle"),
        "solved_at": ("catch", "-c", "oracle", "--solved-at", "nan"),
        "nowhere": ("catch", "-c", "random", "-c", "hf:./nowhere"),
    }.items():
        done = invoke_eval(*arguments, "-o", out)
        assert isinstance(done.exception, LudusError) and named in str(done.exception)
        assert "\n" not in str(done.exception)
    assert not out.exists()


def test_tilde_is_expanded_in_option_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = Runner().invoke(["collect", "catch", "-n", "2", "--output-dir=~/run"])
    done = invoke_eval(
        "catch", "-c", "oracle", "-n", "2", "--exclude-tasks-in=~/run", "--output-dir=~/eval"
    )
    assert (run.exit_code, done.exit_code) == (0, 0)
    assert read_summary(tmp_path / "eval")["exclude_tasks_in"] == str(tmp_path / "run")
    done = invoke_eval("catch", "-c", "oracle", "-o", "~nobody-is-called-this/eval")
    assert done.exit_code == 2 and "no such user" in done.stderr


def test_collect_and_eval_share_their_help_texts() -> None:
    collect, evaluate = (
        {flag.name: flag.help for flag in flags_of(find_command(name)).values()}
        for name in ("collect", "eval")
    )
    assert len(collect.items() & evaluate.items()) >= 14
    differ = {flag for flag in collect.keys() & evaluate.keys() if collect[flag] != evaluate[flag]}
    assert differ == {"--num-episodes", "--seed", "--output-dir"}, "these have different meanings"


def test_ctrl_c_keeps_episodes_and_the_same_command_resumes(tmp_path: Path) -> None:
    out = tmp_path / "eval"
    with chat_stub(latency=0.05) as stub:
        command = stub_args(stub, "-n", "60", "--concurrency", "4", "-o", out)
        with start_ludus("eval", *command, env=CLEAN_ENV) as process:
            wait_until(lambda: stub.replies > 20, seconds=30)
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=30)
        recorded = len(read_episodes(out / "stub"))
        assert process.returncode == 130 and "Traceback" not in stderr
        assert 0 < recorded < 60
        assert f"stub: {60 - recorded} episodes" in stdout
        assert read_summary(out)["complete"] is False
        stub.latency = 0.0
        again = evaluate(*command)
    assert (again.returncode, again.stderr) == (0, "stub plays\n")
    assert len(read_episodes(out / "stub")) == 60 and read_summary(out)["complete"] is True


def test_fail_if_worse_is_an_exit_code(tmp_path: Path) -> None:
    gate = ("-n", "20", "--fail-if-worse")
    worse = evaluate("catch", "-c", "oracle", "-c", "random", *gate, "-o", tmp_path / "a")
    assert worse.returncode == 3 and "random is worse than oracle" in worse.stdout
    better = evaluate("catch", "-c", "random", "-c", "oracle", *gate, "-o", tmp_path / "b")
    assert better.returncode == 0 and "oracle is better than random" in better.stdout


def test_fail_if_worse_needs_two_candidates(tmp_path: Path) -> None:
    done = evaluate("catch", "-c", "oracle", "--fail-if-worse", "-o", tmp_path / "eval")
    assert done.returncode == 1 and "--fail-if-worse" in done.stderr
    assert not (tmp_path / "eval").exists()


def test_a_sweep_prints_a_row_for_each_level(tmp_path: Path) -> None:
    how = ("--sweep", "rows=3,10", "-n", "6", "-o", tmp_path / "eval")
    done = evaluate("catch", "-c", "random", "-c", "oracle", *how)
    assert done.returncode == 0, done.stderr
    assert "rows=3" in done.stdout and "rows=10" in done.stdout
    wrong = evaluate("catch", "-c", "random", "--sweep", "row=3,10")
    assert wrong.returncode == 1 and "--sweep" in wrong.stderr and "'rows'" in wrong.stderr
