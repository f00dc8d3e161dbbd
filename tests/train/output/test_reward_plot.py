"""The reward plot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from diagnose.runs import Sample, level, ramp

from ludus.errors import MissingExtra
from ludus.train.output.training_plots import plot_rewards

RUN = Sample().draw()[0]
MIX = Sample({"wordle": ramp((0.0, 0.2), (1.0, 0.7)), "catch": level(0.5)}).draw()[0]
RAW, SMOOTH, BAND, HELD_OUT = (
    (0xA9, 0xC4, 0xE4), (0x1F, 0x5F, 0xA8), (0xE8, 0xEF, 0xF8), (0xD9, 0x63, 0x2B)
)  # fmt: skip
EQUAL, ENTROPY, CATCH, WORDLE = (
    (0x7A, 0x7A, 0x7A), (0x2F, 0x8F, 0x6B), (0x8A, 0x5F, 0xB0), (0xC2, 0xA0, 0x1E)
)  # fmt: skip


def draw(to: Path, log: list[dict[str, Any]], title: str = "GRPO of smollm2") -> Any:
    from matplotlib.image import imread

    plot_rewards(log, to / "reward.png", title=title)
    assert [file.name for file in to.iterdir()] == ["reward.png"]
    return imread(str(to / "reward.png"))


def colours(image: Any) -> set[tuple[int, ...]]:
    flat = (image[..., :3] * 255).round().astype(int).reshape(-1, 3)
    return set(map(tuple, flat.tolist()))


def test_plot_has_reward_deviation_entropy_and_zero_variance(tmp_path: Path) -> None:
    colors = colours(draw(tmp_path, RUN))
    assert {RAW, SMOOTH, BAND, EQUAL, ENTROPY} <= colors
    assert HELD_OUT not in colors and WORDLE not in colors


def test_held_out_rewards_are_drawn(tmp_path: Path) -> None:
    held_out = [{"step": step, "eval_reward": 0.5} for step in (50, 100)]
    assert HELD_OUT in colours(draw(tmp_path, [*RUN, *held_out]))


def test_each_environment_has_a_line(tmp_path: Path) -> None:
    assert {CATCH, WORDLE, SMOOTH} <= colours(draw(tmp_path, MIX))


@pytest.mark.parametrize(
    "log",
    [
        [],
        RUN[:1],
        RUN[:3],
        [{"step": 1, "reward": None}],
        [{"step": 1, "reward": 0.0, "entropy": 0.0}],
        [{"step": 5, "eval_reward": 0.5}],
        Sample(worth=(-1.0, 3.0), steps=12).draw()[0],
        [{"step": 1, "reward": 1.0, "rewards/_a$b/mean": 1.0, "rewards/$x_{/mean": 0.0}],
    ],
    ids=["none", "one", "few", "null", "zero", "held out alone", "another scale", "odd names"],
)
def test_sparse_logs_are_drawn(log: list[dict[str, Any]], tmp_path: Path) -> None:
    assert draw(tmp_path, log).shape[:2] == (720, 960)


def test_title_is_not_parsed_as_math(tmp_path: Path) -> None:
    assert draw(tmp_path, RUN, title="GRPO of $a_{b \\frac on\n" + "x" * 500).shape[1] == 960


def test_missing_matplotlib_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"'ludus-rl\[train\]'"):
        plot_rewards(RUN, tmp_path / "reward.png", title="")
