"""The plot of the loss."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ludus.errors import MissingExtra
from ludus.train.output.training_plots import plot_loss, smooth

RUN: list[dict[str, Any]] = [
    *({"step": step, "loss": 3 / step} for step in range(1, 101)),
    *({"step": step, "eval_loss": 3.5 / step} for step in (50, 100)),
]


def plot(folder: Path, log: list[dict[str, Any]], title: str = "SFT of smollm2") -> Any:
    from matplotlib.image import imread

    plot_loss(log, folder / "loss.png", title=title)
    assert [file.name for file in folder.iterdir()] == ["loss.png"]
    return imread(str(folder / "loss.png"))


def colors(image: Any) -> set[tuple[int, ...]]:
    return {tuple((pixel * 255).round().astype(int)[:3]) for row in image for pixel in row}


def test_train_and_test_loss_are_plotted(tmp_path: Path) -> None:
    drawn = colors(plot(tmp_path, RUN))
    raw, smooth, test = (0xA9, 0xC4, 0xE4), (0x1F, 0x5F, 0xA8), (0xD9, 0x63, 0x2B)
    assert {raw, smooth, test} <= drawn
    assert test not in colors(plot(tmp_path, RUN[:100])), "there is no test loss"
    assert raw not in colors(plot(tmp_path, RUN[:10])), "few points are not smoothed"


@pytest.mark.parametrize(
    "log",
    [[], RUN[:1], [{"step": 1, "loss": None}], [{"step": 5, "eval_loss": 0.0}], RUN[:1] * 2],
    ids=["none", "one", "null", "zero", "the same twice"],
)
def test_a_log_with_few_values_is_plotted(log: list[dict[str, Any]], tmp_path: Path) -> None:
    assert plot(tmp_path, log).shape[:2] == (540, 960)


def test_a_title_may_contain_any_characters(tmp_path: Path) -> None:
    assert plot(tmp_path, RUN, title="SFT of $a_{b \\frac on\n" + "x" * 500).shape[1] == 960


def test_smoothing_keeps_a_straight_line() -> None:
    line = [(step, 2.0 - step / 100) for step in range(100)]
    inside = slice(5, -5)
    assert [y for _, y in smooth(line)][inside] == pytest.approx([y for _, y in line][inside])


def test_smoothing_ignores_an_outlier() -> None:
    constant = [(step, 1.0) for step in range(100)]
    outlier = [*constant[:50], (50, 1000.0), *constant[51:]]
    assert smooth(outlier) == smooth(constant)


def test_without_matplotlib_the_error_has_the_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"'ludus-rl\[train\]'"):
        plot_loss(RUN, tmp_path / "loss.png", title="")
