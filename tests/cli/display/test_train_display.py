"""The display of `ludus train`, and how it handles signals."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ludus.cli.commands.train import TrainRun, run_training
from ludus.cli.display import status
from ludus.cli.display import train_display as display_module
from ludus.cli.display.train_display import training_progress
from ludus.errors import ConfigError
from ludus.train import TrainProgress, TrainResult
from ludus.train.config import TrainConfig
from ludus.train.output.checkpoints import CheckpointState, mark_complete

LINE = {"step": 2, "loss": 1.25, "learning_rate": 2e-4, "tokens": 100, "seconds": 1.0}


def test_a_log_file_gets_plain_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with training_progress() as display:
        display.say("Reading rows.")
        display.begin(10, None)
        for step in range(1, 11):
            display.step({**LINE, "step": step})
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    first, second = stderr.splitlines()
    assert first == "Reading rows."
    assert second.startswith("step 1/10, loss 1.2500, lr 2.00e-04, ") and second.endswith(" left")


def test_log_lines_are_printed_once_per_interval(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "LOG_INTERVAL_S", 0.0)
    with training_progress() as display:
        display.begin(10, 3)
        display.step({**LINE, "step": 4})
        display.step({"step": 5, "eval_loss": 0.5})
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["step 4/10", "step 5/10"]
    assert "test loss 0.5000" in lines[1] and "loss 1.2500" in lines[1]


def test_json_events_hold_every_logged_metric(capfd: pytest.CaptureFixture[str]) -> None:
    with training_progress(as_json=True) as display:
        display.say("Reading rows.")
        display.begin(10, 1)
        display.step({**LINE, "loss": float("nan")})
    words, begun, step = map(json.loads, capfd.readouterr().out.splitlines())
    assert words == {"event": "notice", "message": "Reading rows."}
    assert begun == {"event": "phase", "phase": "Training", "total_steps": 10, "resumed_from": 1}
    assert step.pop("seconds_left") >= 0
    assert step == {"event": "step", **LINE, "loss": None}


def test_a_terminal_bar_is_drawn_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120, legacy_windows=False)
    for module in (status, display_module):
        monkeypatch.setattr(module, "console", lambda **_: terminal)
    with training_progress() as display:
        display.begin(10, None)
        display.step(LINE)
        display.step({**LINE, "step": 3, "tokens": 300})
    drawn = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "3/10" in drawn and "loss 1.2500" in drawn and "tokens/s" in drawn
    assert drawn.rfind("\x1b[?25h") > drawn.rfind("\x1b[?25l"), "the cursor is there again"


def test_quiet_display_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with training_progress(quiet=True, as_json=True) as display:
        display.say("x")
        display.begin(10, None)
        display.step(LINE)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
def test_the_first_signal_requests_a_stop_and_the_second_raises(
    number: signal.Signals, reason: str
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(number)
    try:
        with pytest.raises(KeyboardInterrupt), training_progress() as display:
            display.begin(10, None)
            assert display.stopping is None
            os.kill(os.getpid(), number)
            assert display.stopping == reason
            os.kill(os.getpid(), number)
    finally:
        signal.signal(signal.SIGINT, before[0])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (None, "starts anew"),
        (1200, "step 1,200"),
    ],
)
def test_a_second_ctrl_c_reports_where_the_run_resumes(
    saved: int | None, words: str, tmp_path: Path
) -> None:
    if saved is not None:
        checkpoint = tmp_path / "checkpoints" / f"checkpoint-{saved}"
        checkpoint.mkdir(parents=True)
        mark_complete(checkpoint, CheckpointState(saved))

    def stage(*_: Any, progress: TrainProgress, **__: Any) -> TrainResult:
        progress.begin(2000, None)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=words):
        run_training(stage, TrainConfig(), TrainRun("m", tmp_path))


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_before_the_first_step_raises(number: signal.Signals, raised: Any) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(raised), training_progress():
            os.kill(os.getpid(), number)
    finally:
        signal.signal(signal.SIGINT, before)


def test_on_checked_runs_before_the_first_step(capfd: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise ConfigError("refused")

    with (
        pytest.raises(ConfigError, match="refused"),
        training_progress(on_checked=refuse) as display,
    ):
        display.begin(10, None)
    assert capfd.readouterr().out == ""
