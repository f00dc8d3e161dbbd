"""The results of an evaluation as an SVG bar chart: a panel per metric, a bar per candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from ludus.data.task_mean import MeanEstimate
from ludus.evaluation.metrics import Metric
from ludus.evaluation.results import CandidateScore, Evaluation
from ludus.evaluation.svg import (
    LINE_HEIGHT,
    PLOT_HEIGHT,
    YAxis,
    candidate_color,
    chart_label,
    legend_height,
    svg_document,
    svg_legend,
    svg_line,
    svg_text,
)

_BAR_WIDTH, _BAR_GAP, _LEFT_MARGIN = 46, 22, 58
_PLOT_TOP = 48
_PANEL_HEIGHT = _PLOT_TOP + PLOT_HEIGHT + LINE_HEIGHT
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
    labels = [score.label for score in scores]
    legend = svg_legend(labels, _LEFT_MARGIN, legend_top)
    width = columns * panel_width + _BAR_GAP
    height = legend_top + legend_height(len(labels))
    return svg_document(width, height, [*panels, *legend])


def _panel_width(scores: Sequence[CandidateScore]) -> int:
    """Return the width of a panel, which must also fit its title."""
    return _LEFT_MARGIN + max(_MIN_PANEL_WIDTH, len(scores) * (_BAR_WIDTH + _BAR_GAP))


def _svg_panel(
    metric: Metric, scores: Sequence[CandidateScore], column: int, row: int
) -> Iterator[str]:
    estimates = [score.estimates.get(metric.name) for score in scores]
    axis = YAxis.for_metric(metric, estimates, _PLOT_TOP + row * _PANEL_HEIGHT)
    left, right = column * _panel_width(scores) + _LEFT_MARGIN, (column + 1) * _panel_width(scores)
    yield svg_text(left, axis.top - 26, metric.title, weight="bold")
    for value in (axis.low, (axis.low + axis.high) / 2, axis.high):
        y = axis.y(value)
        yield svg_line(left, y, right, y, "#ddd")
        yield svg_text(left - 6, y + 4, chart_label(metric, value), anchor="end")
    for number, estimate in enumerate(estimates):
        if estimate is not None:
            x = left + _BAR_GAP / 2 + number * (_BAR_WIDTH + _BAR_GAP)
            yield from _svg_bar(metric, estimate, axis, x, candidate_color(number))


def _svg_bar(
    metric: Metric, estimate: MeanEstimate, axis: YAxis, left: float, color: str
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
        yield svg_line(center, high, center, low, "#222")
        yield svg_line(center - 6, high, center + 6, high, "#222")
        yield svg_line(center - 6, low, center + 6, low, "#222")
    yield svg_text(center, label_bottom - 5, chart_label(metric, estimate.value), anchor="middle")
