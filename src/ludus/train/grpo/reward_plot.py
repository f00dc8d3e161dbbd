"""The reward over the steps, as a picture: `reward.png`.

Above, the reward with its spread, held-out tasks, and each environment of a mix; below, what tells
whether there is anything left to learn: equal groups and entropy. Pure but for the file. Drawn on
a canvas of its own: no window, no state that others share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.data.atomic_write import atomic_file
from ludus.data.training_log import logged_values
from ludus.errors import MissingExtra
from ludus.train.output.loss_plot import Points, smooth

_SMOOTH_FROM_STEPS = 40
"""From so many steps on, one line alone is a thicket."""
_MAX_PART_LINES = 5
"""Environments and reward functions that a picture can hold apart."""
_MAX_LABEL_CHARS = 32
_RAW_COLOR, _SMOOTH_COLOR, _BAND_COLOR, _HELD_OUT_COLOR = "#a9c4e4", "#1f5fa8", "#e8eff8", "#d9632b"
_ZERO_VARIANCE_COLOR, _ENTROPY_COLOR = "#7a7a7a", "#2f8f6b"
_PART_COLORS = ("#8a5fb0", "#c2a01e", "#b0486f", "#4d9bb8", "#6b4a2f")


def plot_rewards(lines: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw the log's rewards; without any, an empty picture that says so."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra.of("train", "Drawing the reward") from None

    figure = Figure(figsize=(8, 6), dpi=120, layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=(2.4, 1))
    _plot_rewards(above, lines)
    _plot_learning_signals(below, lines)
    above.set_title(_shorten(title, 90), loc="left", fontsize=11, parse_math=False)
    below.set_xlabel("step")
    below.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    with atomic_file(path) as draft:
        FigureCanvasAgg(figure).print_png(str(draft))


def _plot_rewards(axes: Any, lines: Sequence[Mapping[str, Any]]) -> None:
    train, test = logged_values(lines, "reward"), logged_values(lines, "eval_reward")
    _style_axes(axes, "reward")
    if not train and not test:
        axes.text(0.5, 0.5, "no reward was logged", transform=axes.transAxes, ha="center")
        return
    _plot_std_band(axes, lines, [value for _, value in (*train, *test)])
    _plot_training_rewards(axes, train)
    _plot_reward_parts(axes, lines)
    if test:
        points = {"color": _HELD_OUT_COLOR, "markersize": 6, "zorder": 5}
        axes.plot(*_to_columns(test), "o--", linewidth=1.0, label="held out", **points)
    _set_reward_limits(axes, [value for _, value in (*train, *test)])
    # Where there is room: whether a reward rises or falls is not known beforehand.
    axes.legend(frameon=False, loc="best", fontsize=9)


def _plot_training_rewards(axes: Any, train: Points) -> None:
    if len(train) < _SMOOTH_FROM_STEPS:
        axes.plot(
            *_to_columns(train),
            "o-",
            color=_SMOOTH_COLOR,
            linewidth=1.2,
            markersize=3,
            label="train",
        )
        return
    axes.plot(*_to_columns(train), color=_RAW_COLOR, linewidth=0.9, label="train")
    axes.plot(
        *_to_columns(smooth(train)), color=_SMOOTH_COLOR, linewidth=2.2, label="train, smoothed"
    )


def _plot_std_band(axes: Any, lines: Sequence[Mapping[str, Any]], rewards: list[float]) -> None:
    """One standard deviation to either side, within what rewards can be where that is known."""
    both = [line for line in lines if None not in (line.get("reward"), line.get("reward_std"))]
    if not both:
        return
    middle = [value for _, value in smooth(logged_values(both, "reward"))]
    spread = [value for _, value in smooth(logged_values(both, "reward_std"))]
    low, high = (0.0, 1.0) if _in_unit_interval(rewards) else (float("-inf"), float("inf"))
    under = [max(low, one - std) for one, std in zip(middle, spread, strict=True)]
    over = [min(high, one + std) for one, std in zip(middle, spread, strict=True)]
    steps = [line["step"] for line in both]
    axes.fill_between(
        steps, under, over, color=_BAND_COLOR, linewidth=0, label="± one standard deviation"
    )


def _plot_reward_parts(axes: Any, lines: Sequence[Mapping[str, Any]]) -> None:
    """A line for each environment or reward function, where there are several."""
    keys = sorted({key for line in lines for key in line if _is_reward_part(key)})
    if not 1 < len(keys) <= _MAX_PART_LINES:
        return
    for key, colour in zip(keys, _PART_COLORS, strict=False):
        name = key.removeprefix("rewards/").removesuffix("/mean")
        # A name that begins with an underscore is left out of a legend.
        label = _shorten(name, _MAX_LABEL_CHARS).replace("$", r"\$").lstrip("_")
        points = _to_columns(smooth(logged_values(lines, key)))
        axes.plot(*points, color=colour, linewidth=1.3, label=label)


def _plot_learning_signals(axes: Any, lines: Sequence[Mapping[str, Any]]) -> None:
    _style_axes(axes, "equal groups")
    axes.yaxis.label.set_color(_ZERO_VARIANCE_COLOR)
    axes.set_ylim(-0.05, 1.05)
    axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    equal, entropy = logged_values(lines, "equal"), logged_values(lines, "entropy")
    axes.plot(*_to_columns(smooth(equal)), color=_ZERO_VARIANCE_COLOR, linewidth=1.6)
    if entropy:
        beside = axes.twinx()
        beside.plot(*_to_columns(smooth(entropy)), color=_ENTROPY_COLOR, linewidth=1.6)
        beside.set_ylabel("entropy", color=_ENTROPY_COLOR)
        beside.set_ylim(0, 1.1 * max(value for _, value in entropy) or 1.0)
        beside.spines[["top", "left"]].set_visible(False)


def _style_axes(axes: Any, name: str) -> None:
    axes.set_ylabel(name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)


def _set_reward_limits(axes: Any, rewards: list[float]) -> None:
    """All of the scale where it is known: a rise of a hundredth must not look like a success."""
    if _in_unit_interval(rewards):
        axes.set_ylim(-0.02, 1.02)


def _is_reward_part(key: str) -> bool:
    return key.startswith("rewards/") and key.endswith("/mean")


def _in_unit_interval(rewards: list[float]) -> bool:
    return min(rewards) >= 0.0 and max(rewards) <= 1.0


def _to_columns(points: Points) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _shorten(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
