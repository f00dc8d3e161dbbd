"""Charts of a report as inline SVG, drawn with matplotlib without pyplot's global state.

Colors are drawn as placeholders, which become variables of the page's style, for light and dark.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

from ludus.errors import MissingExtra
from ludus.reporting.document import Chart, Histogram, IntervalChart, LineChart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 420, 230
_MAX_POINTS = 160
_SMOOTHING = 1 / 40
"""Part of the x axis over which all lines are smoothed to either side, over the raw ones."""
_MAX_DOTS = 12
"""Lines with more points are drawn without dots."""
_MAX_DISTINCT = 12
"""A histogram of more different values has `_BINS` bars."""
_BINS = 20
_ROW_HEIGHT = 30
_LABEL_WIDTH = 120
_MAX_LABEL_CHARS = 20

_SERIES = ("#000001", "#000002", "#000003", "#000004")
_GRID, _MUTED, _TEXT = "#000005", "#000006", "#000007"
_VARIABLES = {
    **{color: f"var(--s{number})" for number, color in enumerate(_SERIES)},
    **{_GRID: "var(--line)", _MUTED: "var(--muted)", _TEXT: "var(--text)"},
}


def render_chart(chart: Chart) -> str:
    """Return the chart as an SVG element."""
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra.of("report", "A report with charts") from None

    left, right, top, bottom, height = 50, 14, 18, 34, HEIGHT
    if isinstance(chart, IntervalChart):
        left, right, bottom = _LABEL_WIDTH, 24, 24
        height = top + _ROW_HEIGHT * len(chart.rows) + bottom
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    axes = figure.add_axes(
        (left / WIDTH, bottom / height, 1 - (left + right) / WIDTH, 1 - (top + bottom) / height)
    )
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.set_axisbelow(True)
    match chart:
        case LineChart():
            _draw_lines(axes, chart)
        case Histogram():
            _draw_histogram(axes, chart)
        case IntervalChart():
            _draw_intervals(axes, chart)
    axes.tick_params(length=0, labelsize=12, pad=6)
    file = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ludus"}):
        FigureCanvasSVG(figure).print_svg(file)
    # The content without head, ids of groups and fonts: the page has its own.
    text = file.getvalue()
    content = text[text.index('<g id="figure_1">') : text.rindex("</svg>")]
    content = re.sub(r'<g id="\w*"/>|(?<=<g) id="\w*"|<!--.*?-->', "", content)
    content = re.sub(r'(?<=<text style=")font[^"]*sans-serif; ', "", content)
    content = re.sub(r"\s*\n\s*", "\n", content).replace("xlink:href", "href")
    content = re.sub(r"#00000\d", lambda match: _VARIABLES[match[0]], content)
    head = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(chart.title)}"'
    return f"<svg {head}>{content}</svg>"


def _draw_lines(axes: Axes, chart: LineChart) -> None:
    series = [(each.label, _thin(each.points)) for each in chart.series]
    xs = [x for _, points in series for x, _ in points]
    low, high = min(xs), max(xs)
    ticks = _ticks([y for _, points in series for _, y in points])
    _grid(axes, "y", ticks)
    axes.set_xlim(low, high if high > low else low + 1)
    ends = axes.get_xlim()
    axes.set_xticks(
        [ends[0], sum(ends) / 2, ends[1]], [_number(low), "step", _number(high)],
        color=_MUTED, parse_math=False,
    )  # fmt: skip
    first, _, last = axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    for number, (label, points) in enumerate(series):
        color = _SERIES[number % len(_SERIES)]
        if (smoothed := _smooth(points, _SMOOTHING * (high - low))) != points:
            axes.plot(*zip(*points, strict=True), color=color, linewidth=1, alpha=0.35)
        axes.plot(
            *zip(*smoothed, strict=True), color=color, linewidth=2, label=label, clip_on=False,
            marker="o" if len(points) <= _MAX_DOTS else None, markersize=6, markeredgewidth=0,
        )  # fmt: skip
    if len(series) > 1:
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 0.97), ncols=len(series), frameon=False,
            fontsize=12, labelcolor=_MUTED, handlelength=1.2, borderpad=0.2,
        )  # fmt: skip


def _draw_histogram(axes: Axes, chart: Histogram) -> None:
    bars = _bins(chart.values)
    counts = [count for _, count in bars]
    axes.bar(range(len(bars)), counts, width=0.8, color=_SERIES[0])
    highest = max(counts)
    _grid(axes, "y", [tick for tick in _ticks([0, highest]) if tick == int(tick)])
    axes.set_ylim(0, highest)
    axes.set_xlim(-0.5, len(bars) - 0.5)
    shown = range(0, len(bars), -(-len(bars) // 6))
    axes.set_xticks(shown, [bars[number][0] for number in shown], color=_MUTED)


def _draw_intervals(axes: Axes, chart: IntervalChart) -> None:
    ends = [end for _, *ends in chart.rows for end in ends if end is not None]
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if chart.is_share else _ticks([0, *ends])
    _grid(axes, "x", ticks, [f"{100 * tick:.0f} %" for tick in ticks] if chart.is_share else None)
    names = [
        label if len(label) <= _MAX_LABEL_CHARS else f"{label[: _MAX_LABEL_CHARS - 1]}…"
        for label, *_ in chart.rows
    ]
    axes.set_yticks(range(len(names)), names, color=_TEXT, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    for number, (_, value, low, high) in enumerate(chart.rows):
        color = _SERIES[(number if chart.color is None else chart.color) % len(_SERIES)]
        if low is not None and high is not None:
            axes.hlines(number, low, high, color=color, linewidth=3, alpha=0.55, capstyle="round")
        axes.plot([value], [number], "o", color=color, markersize=10, clip_on=False)
        near_end = value > ticks[-1] - 0.2 * (ticks[-1] - ticks[0])
        axes.annotate(
            f"{100 * value:.1f} %" if chart.is_share else _number(value), (value, number),
            (-9 if near_end else 9, 7), textcoords="offset points", color=_MUTED, fontsize=12,
            horizontalalignment="right" if near_end else "left",
        )  # fmt: skip


def _grid(
    axes: Axes, axis: str, ticks: Sequence[float], labels: Sequence[str] | None = None
) -> None:
    names = labels or [_number(tick) for tick in ticks]
    if axis == "x":
        axes.set_xticks(ticks, names, color=_MUTED)
        axes.set_xlim(ticks[0], ticks[-1])
    else:
        axes.set_yticks(ticks, names, color=_MUTED)
        axes.set_ylim(ticks[0], ticks[-1])
    axes.grid(axis="x" if axis == "x" else "y", color=_GRID, linewidth=1)


def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `_MAX_POINTS`: the means of neighbours."""
    size = max(1, -(-len(points) // _MAX_POINTS))
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    return [(chunk[-1][0], sum(y for _, y in chunk) / len(chunk)) for chunk in chunks]


def _smooth(points: Sequence[tuple[float, float]], reach: float) -> list[tuple[float, float]]:
    """Means over all points up to `reach` before and after each, over fewer at the ends."""
    smoothed = []
    for x, _ in points:
        near = min(reach, x - points[0][0], points[-1][0] - x)
        window = [y for other, y in points if abs(other - x) <= near]
        smoothed.append((x, sum(window) / len(window)))
    return smoothed


def _bins(values: Sequence[float]) -> list[tuple[str, int]]:
    """A bar for each value, or for equal ranges of many different values."""
    counts = Counter(round(value, 6) for value in values)
    if len(counts) <= _MAX_DISTINCT:
        return [(_number(value), counts[value]) for value in sorted(counts)]
    low, high = min(values), max(values)
    width = (high - low) / _BINS
    bins = Counter(min(_BINS - 1, int((value - low) / width)) for value in values)
    return [(_number(low + width * (number + 0.5)), bins[number]) for number in range(_BINS)]


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers that enclose the values."""
    from matplotlib.ticker import MaxNLocator

    locator = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10])
    return [float(tick) for tick in locator.tick_values(min(values), max(values))]


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
