"""Charts of a report as inline SVG, drawn with matplotlib without pyplot's global state.

Colors are drawn as placeholders, which become variables of the page's style, for light and dark.
"""

from __future__ import annotations

import re
from html import escape
from io import StringIO
from statistics import fmean

from ludus.errors import MissingExtra
from ludus.reporting.document import Chart, Histogram, LineChart

WIDTH, HEIGHT = 420, 230
_MAX_POINTS = 60
_MAX_DOTS = 12
"""Lines with more points are drawn without dots."""
_MAX_BINS = 20

_SERIES = ("#000001", "#000002", "#000003", "#000004")
_GRID, _MUTED = "#000005", "#000006"
_VARIABLES = {
    **{color: f"var(--s{number})" for number, color in enumerate(_SERIES)},
    **{_GRID: "var(--line)", _MUTED: "var(--muted)"},
}


def render_chart(chart: Chart) -> str:
    """Return the chart as an SVG element."""
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra.of("report", "A report with charts") from None

    left, right, top, bottom = 50, 14, 18, 34
    figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72)
    figure.patch.set_visible(False)
    axes = figure.add_axes(
        (left / WIDTH, bottom / HEIGHT, 1 - (left + right) / WIDTH, 1 - (top + bottom) / HEIGHT)
    )
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=_GRID, linewidth=1)
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
    head = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}"'
    return f"<svg {head}>{content}</svg>"
