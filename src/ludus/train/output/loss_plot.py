"""The loss over the steps, as a picture: `loss.png`.

Pure but for the file. Drawn on a canvas of its own: no window, no state that others share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.data.atomic_write import atomic_file
from ludus.data.training_log import logged_values
from ludus.errors import MissingExtra

_SMOOTHING_FRACTION = 0.05
"""The part of the run over which the smoothed line takes the mean."""
_MAX_HALF_WINDOW = 50
_MIN_SMOOTHED_POINTS = 40
"""From so many losses on, one line alone is a thicket."""
_OUTLIER_FRACTION = 0.02
"""The part of the losses that the picture may leave out at the top."""
_RAW_COLOR, _SMOOTH_COLOR, _TEST_COLOR = "#a9c4e4", "#1f5fa8", "#d9632b"

Points = list[tuple[int, float]]


def plot_loss(lines: Sequence[Mapping[str, Any]], file: Path, *, title: str) -> None:
    """Draw the log's losses; without any, an empty picture that says so."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra.of("train", "Drawing the loss") from None

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    _plot_curves(axes, logged_values(lines), logged_values(lines, "eval_loss"))
    axes.set_title(_truncate_title(title), loc="left", fontsize=11, parse_math=False)
    axes.set(xlabel="step", ylabel="loss")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    with atomic_file(file) as draft:
        FigureCanvasAgg(figure).print_png(str(draft))


def smooth(points: Points) -> Points:
    """Each value's neighbours on both sides, less the outer quarters, as their mean.

    Both sides, so that the line does not lag behind a falling loss; less the outer quarters, so
    that one wild step does not look like many. At the ends there are fewer neighbours.
    """
    half = min(_MAX_HALF_WINDOW, round(_SMOOTHING_FRACTION * len(points) / 2))
    values = [value for _, value in points]
    found = []
    for place, (step, _) in enumerate(points):
        reach = max(half // 3, min(half, place, len(values) - 1 - place))
        near = sorted(values[max(0, place - reach) : place + reach + 1])
        middle = near[len(near) // 4 : len(near) - len(near) // 4]
        found.append((step, sum(middle) / len(middle)))
    return found


def _plot_curves(axes: Any, train: Points, test: Points) -> None:
    if not train and not test:
        axes.text(0.5, 0.5, "no loss was logged", transform=axes.transAxes, ha="center")
        return
    many = len(train) >= _MIN_SMOOTHED_POINTS
    if train:
        mark = {"marker": "o", "markersize": 3} if not many else {}
        colour = _RAW_COLOR if many else _SMOOTH_COLOR
        axes.plot(*_unzip(train), color=colour, linewidth=1.0, label="train", **mark)
    if many:
        axes.plot(
            *_unzip(smooth(train)), color=_SMOOTH_COLOR, linewidth=2.0, label="train, smoothed"
        )
    if test:
        axes.plot(*_unzip(test), "o", color=_TEST_COLOR, markersize=6, label="test", zorder=5)
    _set_axis_limits(axes, [value for _, value in (*train, *test)])
    axes.legend(frameon=False, loc="upper right")


def _set_axis_limits(axes: Any, values: list[float]) -> None:
    """All of it but a few outliers: one wild step must not flatten the rest."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    usual = ordered[int((1 - _OUTLIER_FRACTION) * (len(ordered) - 1))]
    if high - low > 4 * (usual - low) > 0:
        high = low + 1.5 * (usual - low)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    axes.set_ylim(low - room, high + room)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def _unzip(points: Points) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _truncate_title(title: str, width: int = 90) -> str:
    line = " ".join(title.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
