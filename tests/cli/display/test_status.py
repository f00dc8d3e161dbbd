"""The progress display: one area that is redrawn on a terminal, sparse lines elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from ludus_process import LUDUS
from policy.models import saved
from pseudo_terminal import open_terminal, screens, stderr_on_a_terminal
from tiny_tokenizers import of_family

from cli.collect_cli import COUNTER, PYTHONPATH, TESTS
from cli.train_cli import FAST_OPTIONS, OFFLINE_ENV, save_model, write_pairs, write_rows
from ludus.cli.display import status
from ludus.cli.display.formatting import format_time_left
from ludus.cli.display.status import JsonStatus, LiveStatus, LogStatus, PhaseStatus
from ludus.cli.main import run
from ludus.rollout.progress import PhaseProgress

IMPORT_MARK = b"<heavy import>"
"""As `first_import/sitecustomize.py` writes it."""
SHORT = ("--max-turns", "1", "--max-tokens", "6", "--device", "cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("status") / "model", of_family("qwen3"))


@pytest.fixture
def every_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw every view, however fast it is replaced."""
    monkeypatch.setattr(status, "MIN_REDRAW_INTERVAL_S", 0.0)


def build_commands(model: Path, home: Path) -> dict[str, tuple[str | Path, ...]]:
    data, out = write_rows(home / "data", 4, 2), home / "out"
    return {
        "collect": ("collect", COUNTER, "--agent", f"hf:{model}", "-n", "2", "-o", out),
        "eval": ("eval", COUNTER, "-c", f"base=hf:{model}", "-n", "2", "-o", out),
        "sft": ("train", "sft", data, "-m", model, "-o", out),
        "dpo": ("train", "dpo", write_pairs(home / "pairs", 4), "-m", model, "-o", out),
        "grpo": ("train", "grpo", COUNTER, "-m", model, "-o", out, "--steps", "1"),
    }


def read_until_torch_import(command: tuple[str | Path, ...], file: int, stderr: int) -> bytes:
    """The output up to the import of torch; the command is killed then."""
    paths = os.pathsep.join((str(TESTS / "cli" / "first_import"), PYTHONPATH))
    env = {**os.environ, **OFFLINE_ENV, "PYTHONPATH": paths, "TERM": "xterm-256color"}
    env.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [*LUDUS, *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=stderr,
        stderr=stderr,
        env=env,
    )
    os.close(stderr)
    output = b""
    try:
        while IMPORT_MARK not in output and (chunk := os.read(file, 4096)):
            output += chunk
    finally:
        process.kill()
        process.wait()
        os.close(file)
    before, mark, _ = output.partition(IMPORT_MARK)
    assert mark, output.decode()
    return before


def height(screen: Sequence[str]) -> int:
    """The number of lines that are not empty."""
    return sum(map(bool, screen))


@pytest.mark.parametrize("name", ["collect", "eval", "sft", "dpo", "grpo"])
def test_a_terminal_shows_progress_before_torch_is_imported(
    name: str, model: Path, tmp_path: Path
) -> None:
    before = read_until_torch_import(
        build_commands(model, tmp_path)[name], *open_terminal()
    ).decode()
    lines = [line for screen in screens(before) for line in screen]
    for words in ("Starting", "Checking" if name in ("collect", "eval") else "Loading"):
        assert any(words in line for line in lines), lines


@pytest.mark.parametrize("name", ["collect", "sft"])
def test_a_log_file_gets_a_line_before_torch_is_imported(
    name: str, model: Path, tmp_path: Path
) -> None:
    before = read_until_torch_import(build_commands(model, tmp_path)[name], *os.pipe()).decode()
    assert before.endswith("\n") and before.startswith(("Loading", "Checking"))


def test_a_local_model_shows_tokens_per_second_on_one_line(model: Path, tmp_path: Path) -> None:
    command = ("collect", COUNTER, "--agent", f"hf:{model}", "-n", "6", *SHORT)
    with stderr_on_a_terminal() as drawn:
        assert run([*command, "-o", str(tmp_path / "run")]) == 0
    seen = list(screens(drawn.decode()))
    playing = [line for screen in seen for line in screen if "6/6" in line]
    assert "36 tokens" in playing[-1] and "tokens/s" in playing[-1]
    assert max(map(height, seen)) == 1, "one line, redrawn"
    assert height(seen[-1]) == 0, "removed at the end"


@pytest.mark.usefixtures("every_view")
def test_candidates_are_labelled_in_one_display(model: Path, tmp_path: Path) -> None:
    command = ("eval", COUNTER, "-c", f"base=hf:{model}", "-c", "random", "-n", "2", *SHORT)
    with stderr_on_a_terminal() as drawn:
        assert run([*command, "-o", str(tmp_path / "eval")]) == 0
    seen = list(screens(drawn.decode()))
    lines = {line for screen in seen for line in screen}
    assert any(line.startswith("base ") and "12 tokens" in line for line in lines)
    assert any(line.startswith("random ") and "2/2" in line for line in lines)
    assert max(map(height, seen)) == 1 and height(seen[-1]) == 0


@pytest.mark.usefixtures("every_view")
def test_the_test_loss_is_a_phase_below_the_steps(tmp_path: Path) -> None:
    student, data = save_model(tmp_path / "model"), write_rows(tmp_path / "data", 6, 6)
    command = ("train", "sft", str(data), "-m", str(student), "-o", str(tmp_path / "out"))
    with stderr_on_a_terminal() as drawn:
        assert run([*command, *FAST_OPTIONS, "--epochs", "1"]) == 0
    seen = list(screens(drawn.decode()))
    measuring = [screen for screen in seen if any("test loss on 6 rows" in line for line in screen)]
    assert measuring and height(measuring[-1]) == 2 and height(seen[-1]) == 0


@pytest.mark.usefixtures("every_view")
def test_grpo_shows_progress_of_its_rollouts(model: Path, tmp_path: Path) -> None:
    command = ("train", "grpo", COUNTER, "-m", str(model), "-o", str(tmp_path / "out"), *SHORT)
    small = ("--steps", "2", "--groups", "1", "--group-size", "4", "--report-to", "none")
    more = ("--eval-every", "2", "--eval-episodes", "3")
    with stderr_on_a_terminal() as drawn:
        assert run([*command, *small, *more]) == 0
    *seen, last = screens(drawn.decode())
    lines = [line for screen in seen for line in screen]
    for phase, total in (("held-out tasks before", 3), ("step 1", 4), ("step 2", 4)):
        playing = [line for line in lines if phase in line and f"{total}/{total} episodes" in line]
        assert f"{6 * total} tokens" in playing[-1] and "tokens/s" in playing[-1], phase
    assert any("Training" in line for line in lines)
    assert not any("episodes" in line for line in last), "removed at the end"


def test_a_log_file_gets_each_phase_once_and_no_control_characters(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ("collect", COUNTER, "--agent", f"hf:{model}", "-n", "4", *SHORT)
    assert run([*command, "-o", str(tmp_path / "run")]) == 0
    stderr = capfd.readouterr().err
    lines = stderr.splitlines()
    assert lines[:2] == [f"Checking {COUNTER}", f"Loading {model}"]
    assert len({*lines}) == len(lines)
    assert "\x1b" not in stderr and "\r" not in stderr


def test_with_json_nothing_else_is_printed(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ("collect", COUNTER, "--agent", f"hf:{model}", "-n", "2", *SHORT)
    assert run([*command, "--json", "-o", str(tmp_path / "run")]) == 0
    stdout, stderr = capfd.readouterr()
    first, second, *_, last = map(json.loads, stdout.splitlines())
    assert stderr == "" and last["event"] == "summary"
    assert [first["phase"], second["phase"]] == [f"Checking {COUNTER}", f"Loading {model}"]


def test_json_events_have_the_counts_of_a_phase(capfd: pytest.CaptureFixture[str]) -> None:
    progress = PhaseProgress("Measuring", 8, "rows", token_count=0, in_log=True)
    with JsonStatus(interval_s=3600) as shown:
        shown.show(PhaseStatus(progress))
        for _ in range(3):
            progress.advance(2, tokens=10)
            shown.refresh()
        shown.notify("slow")
    phase, counts, notice = map(json.loads, capfd.readouterr().out.splitlines())
    assert phase == {"event": "phase", "phase": "Measuring"}
    assert (counts["event"], counts["done"], counts["total"], counts["tokens"]) == (
        "progress", 2, 8, 10,
    )  # fmt: skip
    assert notice == {"event": "notice", "message": "slow"}


def test_a_log_file_gets_one_progress_line_per_interval(capfd: pytest.CaptureFixture[str]) -> None:
    progress = PhaseProgress("Measuring", 8, "rows", token_count=0, in_log=True)
    with LogStatus(interval_s=3600) as shown:
        shown.show(PhaseStatus(progress))
        for _ in range(3):
            progress.advance(2, tokens=10)
            shown.refresh()
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "Measuring" and len(lines) == 2
    assert lines[1].startswith("Measuring, 2/8 rows, 10 tokens")


def test_an_unchanged_line_is_not_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    with LogStatus(interval_s=0) as shown:
        shown.show(PhaseStatus(PhaseProgress("Loading a model", in_log=True)))
        for _ in range(3):
            shown.refresh()
    assert capfd.readouterr().err == "Loading a model\n"


@pytest.mark.usefixtures("every_view")
def test_a_printed_line_stays_above_the_display() -> None:
    with stderr_on_a_terminal() as drawn, LiveStatus() as shown:
        shown.show(PhaseStatus(PhaseProgress("Loading")))
        shown.notify("A disk is full.")
        shown.show(PhaseStatus(PhaseProgress("Playing")))
    *seen, last = screens(drawn.decode())
    assert [*filter(None, last)] == ["A disk is full."]
    assert any(screen[0] == last[0] and "Playing" in screen[-1] for screen in seen)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "~0 s"), (42, "~42 s"), (99.6, "~2 min"), (200, "~3 min"), (5000, "~1 h 23 min")],
)
def test_an_estimate_is_rounded(seconds: float, words: str) -> None:
    assert format_time_left(seconds) == words
