"""`ludus train sft` and `dpo`: training, results, signals, and upload to the Hub."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from publish.fake_hub import TOKEN, FakeHub, fake_hub
from world import wait_until

from cli.collect_cli import error_line
from cli.train_cli import (
    FAST_OPTIONS,
    error_message,
    invoke_train,
    parse_events,
    read_log,
    save_model,
    start_train,
    train,
    write_pairs,
    write_rows,
)
from ludus.train.output.record import read_record

MODEL_FILES = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
RECORD_FILES = {"README.md", "training.json", "log.jsonl", "loss.png"}


def logged_in(hub: FakeHub, home: Path) -> dict[str, str]:
    return {
        **{"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(home / "home")},
        "HF_HUB_OFFLINE": "0",
    }


def test_sft_trains_documents_and_uploads_a_model(tmp_path: Path) -> None:
    model, data, out = (
        save_model(tmp_path / "model"),
        write_rows(tmp_path / "data", 8, 2),
        tmp_path / "out",
    )
    command = ("sft", data, "-m", model, "-o", out, *FAST_OPTIONS, "--steps", "2", "--json")
    with fake_hub() as hub:
        env = logged_in(hub, tmp_path)
        done = train(*command, "-H", "ada/player:private", env=env)
    assert done.returncode == 0, done.stderr
    events = parse_events(done.stdout)
    assert {line["event"] for line in events} == {"phase", "step", "summary"}
    losses = [line["loss"] for line in events if line["event"] == "step" and "loss" in line]
    assert losses == [line["loss"] for line in read_log(out) if "loss" in line]
    ended = events[-1]
    assert (ended["steps"], ended["stopped"], ended["folder"]) == (2, None, str(out))
    assert ended["url"] == f"{hub.url}/ada/player"
    assert (hub.repos, hub.kinds) == ({"ada/player": True}, {"ada/player": "model"})
    assert hub.files.keys() >= MODEL_FILES | RECORD_FILES
    assert {**hub.files, "README.md": b""} == {
        **{file.name: file.read_bytes() for file in out.iterdir()},
        "README.md": b"",
    }
    assert b'name = "ada/player"' in hub.files["README.md"]
    assert not any(TOKEN.encode() in content for content in hub.files.values())
    record = read_record(out)
    assert record is not None and record.metrics is not None
    assert record.data is not None and record.data.test_rows == 2
    assert record.command and record.command.startswith(f"ludus train sft {data} -m {model}")


def test_a_hub_refusal_is_reported_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data, out = (
        save_model(tmp_path / "model"),
        write_rows(tmp_path / "data", 8),
        tmp_path / "out",
    )
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with fake_hub(fail={"create": 403}) as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        done = invoke_train("sft", data, "-m", model, "-o", out, *FAST_OPTIONS, "-H", "ada/player")
    assert "ada/player" in error_message(done) and not out.exists()


def test_a_failed_upload_suggests_no_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data, out = (
        save_model(tmp_path / "model"),
        write_rows(tmp_path / "data", 4),
        tmp_path / "out",
    )
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    command = ("sft", data, "-m", model, "-o", out, *FAST_OPTIONS, "--epochs", "1", "--json")
    with fake_hub(fail={"/commit/": 403}) as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        done = invoke_train(*command, "-H", "ada/player", "--overwrite")
    assert done.exit_code == 1 and (out / "model.safetensors").is_file()
    assert "without --overwrite" in str(done.exception)


def test_prints_of_trackers_do_not_reach_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ludus.train import offline

    sft = offline.sft

    def noisy_sft(*args: Any, **kwargs: Any) -> Any:
        print("* Trackio project initialized")
        return sft(*args, **kwargs)

    monkeypatch.setattr(offline, "sft", noisy_sft)
    model, data, out = (
        save_model(tmp_path / "model"),
        write_rows(tmp_path / "data", 4),
        tmp_path / "out",
    )
    done = invoke_train(
        "sft", data, "-m", model, "-o", out, *FAST_OPTIONS, "--epochs", "1", "--json"
    )
    assert parse_events(done.stdout)[-1]["stopped"] is None
    assert "* Trackio project initialized\n" in done.stderr


def test_dpo_trains_an_adapter_and_prints_the_next_command(tmp_path: Path) -> None:
    model, out = save_model(tmp_path / "model"), tmp_path / "out"
    data = write_pairs(tmp_path / "data", environment="wordle")
    command = ("dpo", data, "-m", model, "-o", out, *FAST_OPTIONS, "--epochs", "1")
    done = invoke_train(*command, "--lora", "r=4,targets=q_proj+v_proj")
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["steps", "loss", "time", "model", "Next:"]
    assert lines[0] == ["steps", "2"] and lines[1][1].startswith("0.693")
    models = ["-c", f"hf:{model}", "-c", f"hf:{out}"]
    assert lines[-1] == ["Next:", "ludus", "eval", "wordle", *models, "-n", "100"]
    adapter = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert (adapter["r"], {*adapter["target_modules"]}) == (4, {"q_proj", "v_proj"})
    assert {file.name for file in out.iterdir()} >= MODEL_FILES | RECORD_FILES


@pytest.mark.slow
def test_ctrl_c_stops_after_the_current_step(tmp_path: Path) -> None:
    model, data, out = (
        save_model(tmp_path / "model"),
        write_rows(tmp_path / "data", 8),
        tmp_path / "out",
    )
    with start_train(
        "sft", data, "-m", model, "-o", out, *FAST_OPTIONS, "--epochs", "50"
    ) as process:
        assert process.stderr is not None
        line = next(text for text in process.stderr if ", loss " in text)
        assert re.match(r"step \d+/100, ", line), line
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopping after this step" in stderr.splitlines()[-1]
    stopped = int(stdout.removeprefix("Stopped at step ").partition(";")[0])
    assert "the same command" in stdout.splitlines()[0] and str(out) in stdout
    assert (out / "model.safetensors").is_file(), "the model so far"
    assert (out / "checkpoints" / f"checkpoint-{stopped}").is_dir() and stopped < 100


def test_a_terminated_run_resumes_with_the_same_command(tmp_path: Path) -> None:
    model, data, out = (
        save_model(tmp_path / "model"),
        write_rows(tmp_path / "data", 8),
        tmp_path / "out",
    )
    command = ("sft", data, "-m", model, "-o", out, *FAST_OPTIONS, "--epochs", "8")
    terminator = Thread(target=_terminate_once_logged, args=(out,))
    terminator.start()
    stopped = invoke_train(*command)
    terminator.join()
    assert stopped.exit_code == 143 and stopped.stdout.startswith("Stopped at step "), stopped
    step = int(stopped.stdout.split()[3].rstrip(";"))
    assert 1 <= step < 16 and (out / "model.safetensors").exists()

    again = invoke_train(*command)
    assert again.exit_code == 0, again.output
    assert again.stdout.startswith(f"steps     16 (resumed after {step})\n")
    record = read_record(out)
    assert record is not None and record.resumed_from == (step,)
    assert [line["step"] for line in read_log(out)] == list(range(1, 17))

    repeated = invoke_train(*command)
    assert repeated.stdout.startswith("steps     16\n")


def _terminate_once_logged(out: Path) -> None:
    """Send SIGTERM to this process once it handles the signal."""
    wait_until(lambda: (out / "log.jsonl").is_file() and bool(read_log(out)), seconds=60)
    os.kill(os.getpid(), signal.SIGTERM)


def test_only_rank_0_prints_errors(tmp_path: Path) -> None:
    command = ("sft", tmp_path / "none", "-m", "model", "-o", tmp_path / "out")
    assert "none" in error_line(train(*command))
    other = train(*command, env={"RANK": "1"})
    assert (other.returncode, other.stdout, other.stderr) == (1, "", "")


def test_background_jobs_keep_ignoring_sigint() -> None:
    from ludus.cli.display.train_display import training_progress

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with training_progress() as shown:
            os.kill(os.getpid(), signal.SIGINT)
            assert shown.stopping is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_rounds_of_a_tutor_are_a_table(tmp_path: Path) -> None:
    flags = ("--rounds", "2", "--episodes", "4", "--eval-episodes", "2", "--max-tokens", "8")
    more = ("--max-turns", "2", "--steps", "1", "--task", '{"rows": 3, "columns": 3}')
    model, out = save_model(tmp_path / "model"), tmp_path / "out"
    done = invoke_train("tutor", "catch", "-m", model, "-o", out, *flags, *more, *FAST_OPTIONS)
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["round", "success", "reward", "agreement", "rows"]
    assert [line[0] for line in lines[1:3]] == ["1", "2"]
    assert sum("kept" in line for line in lines) == 1
    assert ["model", str(out)] in lines
    record = json.loads((out / "training.json").read_text())
    assert record["command"] is not None and record["kind"] == "sft"
