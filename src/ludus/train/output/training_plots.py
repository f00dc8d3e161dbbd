"""The plots of a training run: `loss.png` of SFT and DPO, `reward.png` of GRPO.

Drawn without pyplot, so without a window or global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.data.files import atomic_file
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import log_points
from ludus.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SMOOTHING_FRACTION = 0.05
"""The window of the smoothed line, as a fraction of the run."""
_MAX_HALF_WINDOW = 50
_MIN_SMOOTHED_POINTS = 40
"""With fewer points the line is readable without smoothing."""
_MAX_PART_LINES = 5
"""With more parts of the reward (environments and reward functions) than this, none is drawn."""
_MAX_TITLE_CHARS, _MAX_LABEL_CHARS = 90, 24
_RAW_COLOR, _SMOOTH_COLOR, _BAND_COLOR, _HELD_OUT_COLOR = "#a9c4e4", "#1f5fa8", "#e8eff8", "#d9632b"
_ZERO_VARIANCE_COLOR, _ENTROPY_COLOR = "#7a7a7a", "#2f8f6b"
_PART_COLORS = ("#8a5fb0", "#c2a01e", "#b0486f", "#4d9bb8", "#6b4a2f")

Points = list[tuple[int, float]]


def plot_loss(log: Sequence[JsonObject], file: Path, *, title: str) -> None:
    """Plot the losses of a log; if it has none, an empty plot that says so."""
    figure = _new_figure((8, 4.5), "Plotting the loss")
    axes = figure.add_subplot()
    _style_axes(axes, "loss")
    train, test = log_points(log), log_points(log, "eval_loss")
    if not train and not test:
        axes.text(0.5, 0.5, "no loss was logged", transform=axes.transAxes, ha="center")
    _plot_series(axes, train)
    if test:
        axes.plot(*_unzip(test), "o", color=_HELD_OUT_COLOR, markersize=6, label="test", zorder=5)
    if train or test:
        axes.legend(frameon=False, loc="upper right")
    _save(figure, file, title)


def plot_rewards(log: Sequence[JsonObject], file: Path, *, title: str) -> None:
    """Plot the rewards of a log, and below them zero-variance groups and entropy."""
    figure = _new_figure((8, 6), "Plotting the reward")
    above, below = figure.subplots(2, sharex=True, height_ratios=(2.4, 1))
    _plot_rewards(above, log)
    _style_axes(below, "zero-variance groups")
    below.yaxis.label.set_color(_ZERO_VARIANCE_COLOR)
    below.set_ylim(-0.05, 1.05)
    below.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    zero_variance, entropy = log_points(log, "zero_variance"), log_points(log, "entropy")
    below.plot(*_unzip(smooth(zero_variance)), color=_ZERO_VARIANCE_COLOR, linewidth=1.6)
    if entropy:
        right_axes = below.twinx()
        right_axes.plot(*_unzip(smooth(entropy)), color=_ENTROPY_COLOR, linewidth=1.6)
        right_axes.set_ylabel("entropy", color=_ENTROPY_COLOR)
        right_axes.set_ylim(0, 1.1 * max(value for _, value in entropy) or 1.0)
        right_axes.spines[["top", "left"]].set_visible(False)
    _save(figure, file, title)


def _plot_rewards(axes: Axes, log: Sequence[JsonObject]) -> None:
    """Plot the reward with its standard deviation, its parts, and the held-out reward."""
    train, test = log_points(log, "reward"), log_points(log, "eval_reward")
    _style_axes(axes, "reward")
    if not train and not test:
        axes.text(0.5, 0.5, "no reward was logged", transform=axes.transAxes, ha="center")
        return
    unit_scale = all(0.0 <= reward <= 1.0 for _, reward in (*train, *test))
    floor, ceiling = (0.0, 1.0) if unit_scale else (-inf, inf)
    with_std = [line for line in log if None not in (line.get("reward"), line.get("reward_std"))]
    if with_std:
        # One standard deviation to either side of the mean, clipped to the scale of the rewards.
        means = [value for _, value in smooth(log_points(with_std, "reward"))]
        deviations = [value for _, value in smooth(log_points(with_std, "reward_std"))]
        low = [max(floor, mean - std) for mean, std in zip(means, deviations, strict=True)]
        high = [min(ceiling, mean + std) for mean, std in zip(means, deviations, strict=True)]
        steps, label = [line["step"] for line in with_std], "± one standard deviation"
        axes.fill_between(steps, low, high, color=_BAND_COLOR, linewidth=0, label=label)
    _plot_series(axes, train)
    _plot_reward_parts(axes, log)
    if test:
        axes.plot(
            *_unzip(test), "o--", color=_HELD_OUT_COLOR, linewidth=1.0, markersize=6, zorder=5,
            label="held out",
        )  # fmt: skip
    if unit_scale:
        # Show the whole scale: an increase by 0.01 must not look large.
        axes.set_ylim(-0.02, 1.02)
    axes.legend(frameon=False, loc="best", fontsize=9)


def _plot_reward_parts(axes: Axes, log: Sequence[JsonObject]) -> None:
    """A line for each environment and reward function, if there are several."""
    names = {key for line in log for key in line}
    keys = sorted(key for key in names if key.startswith("rewards/") and key.endswith("/mean"))
    if not 1 < len(keys) <= _MAX_PART_LINES:
        return
    for key, color in zip(keys, _PART_COLORS, strict=False):
        name = key.removeprefix("rewards/").removesuffix("/mean")
        # Matplotlib leaves labels with a leading underscore out of the legend.
        label = _shorten(name, _MAX_LABEL_CHARS).replace("$", r"\$").lstrip("_")
        axes.plot(*_unzip(smooth(log_points(log, key))), color=color, linewidth=1.3, label=label)


def _plot_series(axes: Axes, train: Points) -> None:
    """Plot the values of the steps, with a smoothed line if there are many."""
    if len(train) < _MIN_SMOOTHED_POINTS:
        axes.plot(*_unzip(train), "o-", color=_SMOOTH_COLOR, markersize=3, label="train")
        return
    axes.plot(*_unzip(train), color=_RAW_COLOR, linewidth=0.9, label="train")
    smoothed = _unzip(smooth(train))
    axes.plot(*smoothed, color=_SMOOTH_COLOR, linewidth=2.0, label="train, smoothed")


def smooth(points: Points) -> Points:
    """The interquartile mean of a centered window, which is smaller at the ends.

    Centered, so that the line does not lag behind a falling loss; without the outer quartiles, so
    that a single outlier does not look like many.
    """
    half = min(_MAX_HALF_WINDOW, round(_SMOOTHING_FRACTION * len(points) / 2))
    values = [value for _, value in points]
    smoothed = []
    for index, (step, _) in enumerate(points):
        reach = max(half // 3, min(half, index, len(values) - 1 - index))
        window = sorted(values[max(0, index - reach) : index + reach + 1])
        middle = window[len(window) // 4 : len(window) - len(window) // 4]
        smoothed.append((step, sum(middle) / len(middle)))
    return smoothed


def _unzip(points: Points) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _new_figure(size: tuple[float, float], purpose: str) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra.of("train", purpose) from None
    return Figure(figsize=size, dpi=120, layout="constrained")


def _style_axes(axes: Axes, ylabel: str) -> None:
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)


def _save(figure: Figure, file: Path, title: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.ticker import MaxNLocator

    first, *_ = axes = figure.axes
    line = _shorten(title, _MAX_TITLE_CHARS)
    first.set_title(line, loc="left", fontsize=11, parse_math=False)
    lowest = axes[min(1, len(axes) - 1)]
    lowest.set_xlabel("step")
    lowest.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    with atomic_file(file) as draft:
        FigureCanvasAgg(figure).print_png(str(draft))


def _shorten(text: str, width: int) -> str:
    """Shorten to one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
