"""The plot of a GRPO run: `reward.png`.

The upper axes show the reward with its standard deviation, the reward on held-out tasks, and the
parts of the reward; the lower axes show the share of zero-variance groups, the entropy, and the
buckets of a curriculum. Drawn on its own canvas, without pyplot's global state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from ludus.data.files import atomic_file
from ludus.data.training_log import log_points, read_bucket_metrics
from ludus.errors import MissingExtra
from ludus.train.output.loss_plot import (
    MAX_TITLE_CHARS,
    shorten_plot_title,
    smooth,
    style_plot_axes,
    unzip_points,
)

_SMOOTH_FROM_STEPS = 40
"""From this many steps on, a smoothed line is drawn over the raw one."""
_MAX_PART_LINES = 5
"""With more parts (environments and reward functions) than this, none is drawn."""
_MAX_LABEL_CHARS, _MAX_NAMED_BUCKETS = 24, 12
_RAW_COLOR, _SMOOTH_COLOR, _BAND_COLOR, _HELD_OUT_COLOR = "#a9c4e4", "#1f5fa8", "#e8eff8", "#d9632b"
_ZERO_VARIANCE_COLOR, _ENTROPY_COLOR = "#7a7a7a", "#2f8f6b"
_PART_COLORS = ("#8a5fb0", "#c2a01e", "#b0486f", "#4d9bb8", "#6b4a2f")


def plot_rewards(lines: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Plot the log's rewards to `path`; without any, an empty plot that says so."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra.of("train", "Drawing the reward") from None

    has_curriculum = any(map(read_bucket_metrics, lines))
    size, heights = ((8, 7.5), (2.4, 1, 1)) if has_curriculum else ((8, 6), (2.4, 1))
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    above, below, *lowest = figure.subplots(len(heights), sharex=True, height_ratios=heights)
    _plot_rewards(above, lines)
    above.set_title(
        shorten_plot_title(title, MAX_TITLE_CHARS), loc="left", fontsize=11, parse_math=False
    )
    style_plot_axes(below, "zero-variance groups")
    below.yaxis.label.set_color(_ZERO_VARIANCE_COLOR)
    below.set_ylim(-0.05, 1.05)
    below.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    zero_variance, entropy = log_points(lines, "zero_variance"), log_points(lines, "entropy")
    below.plot(*unzip_points(smooth(zero_variance)), color=_ZERO_VARIANCE_COLOR, linewidth=1.6)
    if entropy:
        right_axes = below.twinx()
        right_axes.plot(*unzip_points(smooth(entropy)), color=_ENTROPY_COLOR, linewidth=1.6)
        right_axes.set_ylabel("entropy", color=_ENTROPY_COLOR)
        right_axes.set_ylim(0, 1.1 * max(value for _, value in entropy) or 1.0)
        right_axes.spines[["top", "left"]].set_visible(False)
    for axes in lowest:
        plot_buckets(axes, lines)
    [below, *lowest][-1].set_xlabel("step")
    below.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    with atomic_file(path) as draft:
        FigureCanvasAgg(figure).print_png(str(draft))


def _plot_rewards(axes: Any, lines: Sequence[Mapping[str, Any]]) -> None:
    train, test = log_points(lines, "reward"), log_points(lines, "eval_reward")
    style_plot_axes(axes, "reward")
    if not train and not test:
        axes.text(0.5, 0.5, "no reward was logged", transform=axes.transAxes, ha="center")
        return
    unit_scale = all(0.0 <= reward <= 1.0 for _, reward in (*train, *test))
    floor, ceiling = (0.0, 1.0) if unit_scale else (-inf, inf)
    with_std = [line for line in lines if None not in (line.get("reward"), line.get("reward_std"))]
    if with_std:
        # One standard deviation to either side of the mean, clipped to the scale of the rewards.
        means = [value for _, value in smooth(log_points(with_std, "reward"))]
        deviations = [value for _, value in smooth(log_points(with_std, "reward_std"))]
        low = [max(floor, mean - std) for mean, std in zip(means, deviations, strict=True)]
        high = [min(ceiling, mean + std) for mean, std in zip(means, deviations, strict=True)]
        steps, label = [line["step"] for line in with_std], "± one standard deviation"
        axes.fill_between(steps, low, high, color=_BAND_COLOR, linewidth=0, label=label)
    if len(train) < _SMOOTH_FROM_STEPS:
        style = {"color": _SMOOTH_COLOR, "linewidth": 1.2, "markersize": 3}
        axes.plot(*unzip_points(train), "o-", label="train", **style)
    else:
        axes.plot(*unzip_points(train), color=_RAW_COLOR, linewidth=0.9, label="train")
        smoothed = unzip_points(smooth(train))
        axes.plot(*smoothed, color=_SMOOTH_COLOR, linewidth=2.2, label="train, smoothed")
    _plot_reward_parts(axes, lines)
    if test:
        axes.plot(
            *unzip_points(test), "o--", color=_HELD_OUT_COLOR, linewidth=1.0, markersize=6,
            zorder=5, label="held out",
        )  # fmt: skip
    if unit_scale:
        # The whole scale: an increase by 0.01 must not look large.
        axes.set_ylim(-0.02, 1.02)
    axes.legend(frameon=False, loc="best", fontsize=9)


def _plot_reward_parts(axes: Any, lines: Sequence[Mapping[str, Any]]) -> None:
    """A line for each environment and reward function, if there are several."""
    names = {key for line in lines for key in line}
    keys = sorted(key for key in names if key.startswith("rewards/") and key.endswith("/mean"))
    if not 1 < len(keys) <= _MAX_PART_LINES:
        return
    for key, color in zip(keys, _PART_COLORS, strict=False):
        name = key.removeprefix("rewards/").removesuffix("/mean")
        # Matplotlib leaves labels with a leading underscore out of the legend.
        label = shorten_plot_title(name, _MAX_LABEL_CHARS).replace("$", r"\$").lstrip("_")
        points = unzip_points(smooth(log_points(lines, key)))
        axes.plot(*points, color=color, linewidth=1.3, label=label)


def plot_buckets(axes: Any, lines: Sequence[Mapping[str, Any]]) -> None:
    """A row for each bucket, as dark at each step as its share of the step's groups."""
    logged = [(line["step"], buckets) for line in lines if (buckets := read_bucket_metrics(line))]
    labels = [*dict.fromkeys(label for _, buckets in logged for label in buckets)]
    rows = {label: row for row, label in enumerate(labels)}
    shares = [[0.0] * len(logged) for _ in labels]
    for column, (_, buckets) in enumerate(logged):
        total = sum(bucket.groups for bucket in buckets.values()) or 1.0
        for label, bucket in buckets.items():
            shares[rows[label]][column] = bucket.groups / total
    steps = [step for step, _ in logged]
    edges = [*(step - 0.5 for step in steps), steps[-1] + 0.5]
    heights = [row - 0.5 for row in range(len(labels) + 1)]
    axes.pcolormesh(edges, heights, shares, cmap="Blues", vmin=0.0, vmax=1.0)
    axes.set_ylabel("curriculum")
    names = labels if len(labels) <= _MAX_NAMED_BUCKETS else []
    axes.set_yticks(
        range(len(names)),
        [shorten_plot_title(name, _MAX_LABEL_CHARS).replace("$", r"\$") for name in names],
        fontsize=8,
    )
    axes.spines[["top", "right"]].set_visible(False)
