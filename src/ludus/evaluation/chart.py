"""The results of an evaluation as an SVG bar chart: a panel per metric, a bar per candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from ludus.evaluation.metrics import Metric, MetricEstimate
from ludus.evaluation.results import CandidateScore, Evaluation

_COLORS = ("#7a869a", "#2f6fde", "#d9662b", "#2a9d6f", "#9a4fc4", "#c9a227")
_BAR_WIDTH, _BAR_GAP, _LEFT_MARGIN = 46, 22, 58
_PLOT_TOP, _PLOT_HEIGHT, _LINE_HEIGHT = 48, 200, 20
_PANEL_HEIGHT = _PLOT_TOP + _PLOT_HEIGHT + _LINE_HEIGHT
_MIN_PANEL_WIDTH, _PAGE_WIDTH = 130, 900


def render_chart(evaluation: Evaluation) -> str:
    """Return the SVG file, with as many panels in a row as fit on a page."""
    scores, metrics = evaluation.scores, evaluation.shown_metrics
    panel_width = _panel_width(scores)
    columns = min(max(1, _PAGE_WIDTH // panel_width), max(1, len(metrics)))
    panels = [
        line
        for number, metric in enumerate(metrics)
        for line in _svg_panel(metric, scores, number % columns, number // columns)
    ]
    legend_top = max(1, ceil(len(metrics) / columns)) * _PANEL_HEIGHT
    legend = []
    for number, score in enumerate(scores):
        y, color = legend_top + _LINE_HEIGHT * (number + 0.5), _bar_color(number)
        legend += [
            f'<rect x="{_LEFT_MARGIN}" y="{y - 10}" width="12" height="12" fill="{color}"/>',
            _svg_text(_LEFT_MARGIN + 18, y, score.label),
        ]
    last_y = legend_top + _LINE_HEIGHT * (len(scores) + 0.5)
    legend.append(_svg_text(_LEFT_MARGIN, last_y, "Whiskers: 95% confidence intervals"))
    width = columns * panel_width + _BAR_GAP
    height = legend_top + _LINE_HEIGHT * (len(scores) + 2)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="#222">'
    )
    background = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    return "\n".join([head, background, *panels, *legend, "</svg>\n"])


@dataclass(frozen=True, slots=True)
class _YAxis:
    """Maps a value to a height on the page."""

    low: float
    high: float
    top: int

    @classmethod
    def for_metric(
        cls, metric: Metric, estimates: Sequence[MetricEstimate | None], top: int
    ) -> _YAxis:
        """Return 0 to 1 for shares, else from 0, or below, to a round number above all values."""
        if metric.is_share:
            return cls(0.0, 1.0, top)
        ends = [
            end
            for each in estimates
            if each is not None
            for end in (each.value, each.low, each.high)
            if end is not None
        ]
        low, high = _round_up(min(0.0, *ends)), _round_up(max(0.0, *ends))
        return cls(low, high if high > low else low + 1, top)

    def y(self, value: float) -> float:
        fraction = (value - self.low) / (self.high - self.low)
        return round(self.top + _PLOT_HEIGHT * (1 - fraction), 2)


def _panel_width(scores: Sequence[CandidateScore]) -> int:
    """Return the width of a panel, which must also fit its title."""
    return _LEFT_MARGIN + max(_MIN_PANEL_WIDTH, len(scores) * (_BAR_WIDTH + _BAR_GAP))


def _svg_panel(
    metric: Metric, scores: Sequence[CandidateScore], column: int, row: int
) -> Iterator[str]:
    estimates = [score.estimates.get(metric.name) for score in scores]
    axis = _YAxis.for_metric(metric, estimates, _PLOT_TOP + row * _PANEL_HEIGHT)
    left, right = column * _panel_width(scores) + _LEFT_MARGIN, (column + 1) * _panel_width(scores)
    yield _svg_text(left, axis.top - 26, metric.title, weight="bold")
    for value in (axis.low, (axis.low + axis.high) / 2, axis.high):
        y = axis.y(value)
        yield _svg_line(left, y, right, y, "#ddd")
        yield _svg_text(left - 6, y + 4, _chart_label(metric, value), anchor="end")
    for number, estimate in enumerate(estimates):
        if estimate is not None:
            x = left + _BAR_GAP / 2 + number * (_BAR_WIDTH + _BAR_GAP)
            yield from _svg_bar(metric, estimate, axis, x, _bar_color(number))


def _round_up(value: float) -> float:
    """Round away from 0, to a number such as 1, 1.5, 2, 3 or 80."""
    if not value:
        return 0.0
    magnitude = 10.0 ** floor(log10(abs(value)))
    steps = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
    rounded = next(step for step in steps if step * magnitude >= abs(value) * 0.999) * magnitude
    return rounded if value > 0 else -rounded


def _svg_bar(
    metric: Metric, estimate: MetricEstimate, axis: _YAxis, left: float, color: str
) -> Iterator[str]:
    zero, end, center = axis.y(0), axis.y(estimate.value), left + _BAR_WIDTH / 2
    top, bottom = min(zero, end), max(zero, end)
    yield (
        f'<rect x="{left}" y="{top}" width="{_BAR_WIDTH}" height="{max(1.0, bottom - top):.2f}" '
        f'fill="{color}"/>'
    )
    label_bottom = top
    if estimate.low is not None and estimate.high is not None:
        low, high = axis.y(estimate.low), axis.y(estimate.high)
        label_bottom = min(top, high)
        yield _svg_line(center, high, center, low, "#222")
        yield _svg_line(center - 6, high, center + 6, high, "#222")
        yield _svg_line(center - 6, low, center + 6, low, "#222")
    yield _svg_text(center, label_bottom - 5, _chart_label(metric, estimate.value), anchor="middle")


def _bar_color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def _chart_label(metric: Metric, value: float) -> str:
    """Return the label of a bar, or of a line of the axis."""
    if metric.is_share:
        return f"{100 * value:.3g}%"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _svg_line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}"/>'


def _svg_text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal"
) -> str:
    attributes = f'x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {attributes}>{escape(text)}</text>"
