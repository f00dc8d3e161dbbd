"""How training shows itself, and what signals mean to it."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from ludus.cli.display import status
from ludus.cli.display import train_display as display_module
from ludus.cli.display.sft_progress import TrainMetrics
from ludus.cli.display.sft_summary import TrainSummary
from ludus.cli.display.train_display import train_display
from ludus.cli.main import CommandGroup
from ludus.cli.train_command import run_training
from ludus.errors import ConfigError
from ludus.train import TrainProgress, TrainResult
from ludus.train.output.checkpoints import CheckpointState, mark_complete

LINE = {"step": 2, "loss": 1.25, "learning_rate": 2e-4, "tokens": 100, "seconds": 1.0}


def test_lines_are_plain_where_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    with train_display(as_json=False) as shown:
        shown.say("Reading rows.")
        shown.begin(10, None)
        for step in range(1, 11):
            shown.step({**LINE, "step": step})
    said, told = capfd.readouterr()
    assert said == ""
    first, second = told.splitlines()
    assert first == "Reading rows."
    assert second.startswith("step 1/10, loss 1.2500, lr 2.00e-04, ") and second.endswith(" left")


def test_plain_lines_come_now_and_then(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "LOG_INTERVAL_S", 0.0)
    with train_display(as_json=False) as shown:
        shown.begin(10, 3)
        shown.step({**LINE, "step": 4})
        shown.step({"step": 5, "eval_loss": 0.5})
    told = capfd.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in told] == ["step 4/10", "step 5/10"]
    assert "test loss 0.5000" in told[1] and "loss 1.2500" in told[1]


def test_json_lines_hold_every_logged_figure(capfd: pytest.CaptureFixture[str]) -> None:
    with train_display(as_json=True) as shown:
        shown.say("Reading rows.")
        shown.begin(10, 1)
        shown.step({**LINE, "loss": float("nan")})
    said = capfd.readouterr().out
    words, begun, step = (json.loads(line) for line in said.splitlines())
    assert words == {"event": "said", "message": "Reading rows."}
    assert begun == {"event": "begin", "total_steps": 10, "resumed_from": 1}
    assert step.pop("seconds_left") >= 0
    assert step == {"event": "step", **LINE, "loss": None}


def test_on_a_terminal_a_bar_is_drawn_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120, legacy_windows=False)
    for module in (status, display_module):
        monkeypatch.setattr(module, "console", lambda **_: terminal)
    with train_display(as_json=False) as shown:
        shown.begin(10, None)
        shown.step(LINE)
        shown.step({**LINE, "step": 3, "tokens": 300})
    drawn = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "3/10" in drawn and "loss 1.2500" in drawn and "tokens/s" in drawn
    assert drawn.rfind("\x1b[?25h") > drawn.rfind("\x1b[?25l"), "the cursor is there again"


def test_other_processes_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with train_display(as_json=True, quiet=True) as shown:
        shown.say("x")
        shown.begin(10, None)
        shown.step(LINE)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("number", "why"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
def test_a_signal_asks_to_stop_and_a_second_one_stops_at_once(
    number: signal.Signals, why: str
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(number)
    try:
        with pytest.raises(KeyboardInterrupt), train_display(as_json=False) as shown:
            shown.begin(10, None)
            assert shown.stopping is None
            os.kill(os.getpid(), number)
            assert shown.stopping == why
            os.kill(os.getpid(), number)
    finally:
        signal.signal(signal.SIGINT, before[0])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (None, "Stopped at once; the same command begins anew."),
        (1200, "Stopped at once; the same command goes on after step 1,200."),
    ],
)
def test_who_stops_at_once_is_told_what_that_costs(
    saved: int | None, words: str, tmp_path: Path
) -> None:
    if saved is not None:
        checkpoint = tmp_path / "checkpoints" / f"checkpoint-{saved}"
        checkpoint.mkdir(parents=True)
        mark_complete(checkpoint, CheckpointState(saved))

    def stage(watch: TrainProgress) -> TrainResult:
        watch.begin(2000, None)
        raise KeyboardInterrupt

    app = typer.Typer(cls=CommandGroup)

    @app.command()
    def go() -> None:
        run_training(
            stage, tmp_path, metrics=TrainMetrics(), summary=TrainSummary("m"), overwrite=False, push=None,
            as_json=False,
        )  # fmt: skip

    @app.command()
    def stay() -> None:
        """A group has several."""

    done = CliRunner().invoke(app, ["go"])
    assert (done.exit_code, done.stderr) == (130, words + "\n")


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_before_the_first_step_a_signal_is_what_it_always_is(
    number: signal.Signals, raised: Any
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(raised), train_display(as_json=False):
            os.kill(os.getpid(), number)
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_hub_is_asked_before_the_first_step(capfd: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise ConfigError("The Hub says no.")

    with (
        pytest.raises(ConfigError, match="says no"),
        train_display(as_json=True, on_checked=refuse) as shown,
    ):
        shown.begin(10, None)
    assert capfd.readouterr().out == ""
