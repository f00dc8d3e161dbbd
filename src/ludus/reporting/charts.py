"""Charts of a report as inline SVG, drawn with matplotlib without pyplot's global state.

Colors are drawn as placeholders, which become variables of the page's style, for light and dark.
"""

from __future__ import annotations

import re
from html import escape
from io import StringIO
from statistics import fmean
from typing import TYPE_CHECKING

from ludus.errors import MissingExtra
from ludus.reporting.document import Chart, Histogram, IntervalChart, LineChart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 420, 230
_MAX_POINTS = 60
_MAX_DOTS = 12
"""Lines with more points are drawn without dots."""
_MAX_BINS = 20
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
    axes.grid(axis="x" if isinstance(chart, IntervalChart) else "y", color=_GRID, linewidth=1)
    axes.tick_params(length=0, labelsize=12, pad=6, labelcolor=_MUTED)
    axes.locator_params(nbins=5)
    match chart:
        case LineChart(lines=lines):
            for number, (label, points) in enumerate(lines.items()):
                # Means of neighbours also smooth a noisy curve.
                size = max(1, -(-len(points) // _MAX_POINTS))
                chunks = [points[start : start + size] for start in range(0, len(points), size)]
                axes.plot(
                    [chunk[-1][0] for chunk in chunks],
                    [fmean(y for _, y in chunk) for chunk in chunks],
                    color=_SERIES[number % len(_SERIES)], linewidth=2, label=label, clip_on=False,
                    marker="o" if len(chunks) <= _MAX_DOTS else None, markersize=6,
                    markeredgewidth=0,
                )  # fmt: skip
            axes.set_xlabel("step", color=_MUTED, fontsize=12)
            if len(lines) > 1:
                axes.legend(
                    loc="lower left", bbox_to_anchor=(0, 0.97), ncols=len(lines), frameon=False,
                    fontsize=12, labelcolor=_MUTED, handlelength=1.2, borderpad=0.2,
                )  # fmt: skip
        case Histogram():
            bins = min(_MAX_BINS, len(set(chart.values)))
            axes.hist(chart.values, bins=bins, color=_SERIES[0], rwidth=0.8)
        case IntervalChart():
            _draw_intervals(axes, chart)
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


def _draw_intervals(axes: Axes, chart: IntervalChart) -> None:
    names = [
        label if len(label) <= _MAX_LABEL_CHARS else f"{label[: _MAX_LABEL_CHARS - 1]}…"
        for label, *_ in chart.rows
    ]
    ends = [end for _, *ends in chart.rows for end in ends if end is not None]
    low, high = (0.0, 1.0) if chart.is_share else (min([0.0, *ends]), max([0.0, *ends]))
    axes.set_xlim(low, high if high > low else low + 1)
    axes.set_yticks(range(len(names)), names, color=_TEXT, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    for number, (_, value, below, above) in enumerate(chart.rows):
        color = _SERIES[number % len(_SERIES)]
        if below is not None and above is not None:
            axes.hlines(
                number, below, above, color=color, linewidth=3, alpha=0.55, capstyle="round"
            )
        axes.plot([value], [number], "o", color=color, markersize=10, clip_on=False)
        near_end = value > high - 0.2 * (high - low)
        axes.annotate(
            f"{100 * value:.1f} %" if chart.is_share else f"{value:,.4g}", (value, number),
            (-9 if near_end else 9, 7), textcoords="offset points", color=_MUTED, fontsize=12,
            horizontalalignment="right" if near_end else "left",
        )  # fmt: skip
    if chart.is_share:
        axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
