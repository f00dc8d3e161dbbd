"""GRPO metrics on a terminal and in a log file."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from ludus.cli.display import status
from ludus.cli.display import train_display as train_display_module
from ludus.cli.display.train_display import MetricsDisplay, training_progress
from ludus.data.training_log import first_and_last_means, sparkline

LINE = {
    **{"step": 1, "loss": 0.01, "learning_rate": 1e-6, "grad_norm": 0.83, "entropy": 0.412},
    **{"reward": 0.25, "reward_std": 0.3, "zero_variance": 0.25, "trained": 0.75},
    **{"unscored": 0.0, "format": 0.98, "done": 0.9, "length": 84.2, "turns": 3.25},
    **{"cut_off": 0.05},
    **{"tokens": 1000, "seconds": 2.0, "time/rollout": 1.25, "time/model": 0.5},
    **{"time/environment": 0.75, "time/train": 0.8, "time/step": 2.1},
}
"""A logged step."""
MIXED = {
    **{"rewards/wordle/mean": 0.125, "rewards/wordle/std": 0.1},
    **{"rewards/catch/mean": 0.5, "rewards/catch/std": 0.2},
}


def row_texts(metrics: MetricsDisplay) -> dict[str, str]:
    return dict(metrics.rows())


def numbers(text: str) -> list[str]:
    return re.findall(r"\d[\d.]*(?:e-\d+)?%?", text)


def metrics_after(*lines: Mapping[str, Any]) -> MetricsDisplay:
    metrics = MetricsDisplay(100)
    for number, line in enumerate(lines, 1):
        metrics.add({**LINE, "step": number, **line})
    return metrics


def test_every_metric_of_a_step_is_in_a_row() -> None:
    rows = row_texts(metrics_after({"kl": 0.002}))
    assert {name: numbers(text) for name, text in rows.items()} == {
        "reward": ["0.250"],
        "groups": ["0.300", "25%", "75%", "0%"],
        "episodes": ["84", "3.2", "98%", "90%", "5%"],
        "policy": ["0.412", "0.83", "0.002", "1.00e-06"],
        "time": ["2.10", "1.25", "0.80", "0.50", "0.75"],
    }
    assert "kl 0.002" in rows["policy"] and "rollout 1.25 s" in rows["time"]


def test_reward_parts_are_shown_only_if_there_are_several() -> None:
    assert row_texts(metrics_after(MIXED))["parts"] == "wordle 0.125  catch 0.500"
    assert "parts" not in row_texts(metrics_after({"rewards/wordle/mean": 0.25}))


def test_the_reward_change_compares_first_and_last_means() -> None:
    metrics = metrics_after(*({"reward": number / 100} for number in range(40)))
    reward = row_texts(metrics)["reward"]
    assert reward.startswith("0.390  (+0.350 since the start)  ▁")
    assert len(reward.rpartition("  ")[2]) == 40
    assert dict(metrics.rows(ascii_only=True))["reward"] == "0.390  (+0.350 since the start)"
    assert first_and_last_means([]) is None and first_and_last_means([1.0, 2.0, 5.0]) == (
        1.0,
        5.0,
    )


def test_missing_metrics_are_left_out() -> None:
    metrics = MetricsDisplay(10)
    assert metrics.rows() == [] and metrics.log_texts() == []
    metrics.add({"step": 1, "zero_variance": 1.0, "unscored": 1.0})
    assert row_texts(metrics) == {"groups": "zero variance 100%  unscored 100%"}


def test_a_held_out_reward_is_shown_once_it_is_logged() -> None:
    metrics = metrics_after({})
    assert "held out" not in row_texts(metrics)
    metrics.add({"step": 1, "eval_reward": 0.375, "eval_format": 0.5, "eval_episodes": 8})
    assert row_texts(metrics)["held out"] == "reward 0.375  format 50%"
    assert row_texts(metrics)["reward"] == "0.250"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([1.0], ""),
        ([0.0, 1.0], "▁█"),
        ([0.5, 0.5, 0.5], "▁▁▁"),
        ([0.0, 0.0, 0.7, 0.7, 1.4, 1.4], "▁▅█"),
        ([3.0, 2.0, 1.0], "█▅▁"),
    ],
)
def test_sparkline_scales_to_its_values(values: list[float], line: str) -> None:
    assert sparkline(values, width=3) == line


def draw(width: int, patch: pytest.MonkeyPatch, **more: Any) -> str:
    """Everything that is written to a terminal of this width."""
    to = io.StringIO()
    terminal = Console(
        file=to, force_terminal=True, width=width, soft_wrap=True, legacy_windows=False
    )
    for module in (status, train_display_module):
        patch.setattr(module, "console", lambda **_: terminal)
    with training_progress() as display:
        display.begin(150, None)
        for step in range(1, 31):
            display.step({**LINE, **MIXED, "step": step, "tokens": step * 1000, **more})
    return to.getvalue()


@pytest.mark.parametrize("width", [120, 50])
def test_a_terminal_shows_a_bar_and_rows_that_fit_its_width(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = draw(width, monkeypatch)
    assert "30/150" in text and "tokens/s" in text
    last = text[text.rindex("30/150") :]
    assert "unscored 0%" in last and last.count("0.80 s") == 1 and "…" not in last, "all is there"
    lines = re.split(r"\r|\n|\x1b\[1A", text)
    seen = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in lines]
    assert max(map(len, seen)) <= width, "else what is drawn again leaves some of it behind"
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"), "the cursor is there again"


def test_control_characters_in_names_are_escaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = draw(120, monkeypatch, **{"rewards/\x1b[2Jowned/mean": 1.0})
    assert "\x1b[2J" not in text and "owned 1.000" in text


def test_a_log_file_gets_one_line_per_interval(capfd: pytest.CaptureFixture[str]) -> None:
    with training_progress() as display:
        display.begin(150, None)
        for step in range(1, 4):
            display.step({**LINE, **MIXED, "step": step})
    stdout, stderr = capfd.readouterr()
    (line,) = stderr.splitlines()
    assert stdout == ""
    start = "step 1/150, reward 0.250, parts wordle 0.125  catch 0.500, groups std 0.300  "
    assert line.startswith(start) and "cut off 5%, policy entropy 0.412" in line
    assert line.endswith(" left")
