"""The plot of the loss, `loss.png`, and the look that the plot of the reward shares with it.

Drawn without pyplot, so without a window or global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.data.files import atomic_file
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import log_points
from ludus.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMOOTHING_FRACTION = 0.05
"""The window of the smoothed line, as a fraction of the run."""
_MAX_HALF_WINDOW = 50
_MIN_SMOOTHED_POINTS = 40
"""With fewer points the line is readable without smoothing."""
_OUTLIER_FRACTION = 0.02
"""The fraction of the highest losses that may lie outside the axes."""
MAX_TITLE_CHARS = 90
_RAW_COLOR, _SMOOTH_COLOR, _TEST_COLOR = "#a9c4e4", "#1f5fa8", "#d9632b"

Points = list[tuple[int, float]]


def plot_loss(log: Sequence[JsonObject], file: Path, *, title: str) -> None:
    """Plot the losses of a log; without any, an empty plot that says so."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise MissingExtra.of("train", "Plotting the loss") from None

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    line = shorten_plot_title(title, MAX_TITLE_CHARS)
    axes.set_title(line, loc="left", fontsize=11, parse_math=False)
    axes.set_xlabel("step")
    style_plot_axes(axes, "loss")
    train, test = log_points(log), log_points(log, "eval_loss")
    if not train and not test:
        axes.text(0.5, 0.5, "no loss was logged", transform=axes.transAxes, ha="center")
    elif len(train) < _MIN_SMOOTHED_POINTS:
        axes.plot(*unzip_points(train), "o-", color=_SMOOTH_COLOR, markersize=3, label="train")
    else:
        axes.plot(*unzip_points(train), color=_RAW_COLOR, linewidth=1.0, label="train")
        smoothed = unzip_points(smooth(train))
        axes.plot(*smoothed, color=_SMOOTH_COLOR, linewidth=2.0, label="train, smoothed")
    if test:
        axes.plot(*unzip_points(test), "o", color=_TEST_COLOR, markersize=6, label="test", zorder=5)
    if values := sorted(value for _, value in (*train, *test)):
        # Fit the axes to all values except a few outliers, which would flatten the rest.
        low, high = values[0], values[-1]
        typical = values[int((1 - _OUTLIER_FRACTION) * (len(values) - 1))]
        if high - low > 4 * (typical - low) > 0:
            high = low + 1.5 * (typical - low)
        margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
        axes.set_ylim(low - margin, high + margin)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
        axes.legend(frameon=False, loc="upper right")
    with atomic_file(file) as draft:
        FigureCanvasAgg(figure).print_png(str(draft))


def smooth(points: Points) -> Points:
    """A smooth loss: the interquartile mean of a centered window, which is smaller at the ends.

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


def unzip_points(points: Points) -> tuple[list[int], list[float]]:
    """The steps and the values of a plotted line."""
    return [step for step, _ in points], [value for _, value in points]


def style_plot_axes(axes: Axes, ylabel: str) -> None:
    """The look of the loss plot, which the plots of all methods share."""
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)


def shorten_plot_title(text: str, width: int) -> str:
    """A title or a label of a loss plot on one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
