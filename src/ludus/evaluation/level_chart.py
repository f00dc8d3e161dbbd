"""The results by difficulty as an SVG line chart: a panel per metric, a line per candidate.

Environments have levels of their own, and panels of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from ludus.evaluation.result_curves import ResultCurves, build_level_curves
from ludus.evaluation.results import Evaluation
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

_LEFT, _TOP, _RIGHT = 58, 48, 24
_STEP_WIDTH, _MIN_WIDTH = 90, 260
_PANEL_HEIGHT = _TOP + PLOT_HEIGHT + 2 * LINE_HEIGHT
_MAX_LABEL_CHARS = 14


def render_level_chart(evaluation: Evaluation) -> str | None:
    """Return the SVG file; None if no environment has levels of difficulty."""
    panels = build_level_curves(evaluation)
    if not panels:
        return None
    lines = [
        line
        for number, curves in enumerate(panels)
        for line in _svg_panel(curves, number * _PANEL_HEIGHT)
    ]
    legend_top = len(panels) * _PANEL_HEIGHT
    labels = [score.label for score in evaluation.scores]
    return svg_document(
        _LEFT + max(map(_plot_width, panels)) + _RIGHT,
        legend_top + legend_height(len(labels)),
        [*lines, *svg_legend(labels, _LEFT, legend_top)],
    )


def _plot_width(curves: ResultCurves) -> int:
    return max(_MIN_WIDTH, _STEP_WIDTH * len(curves.labels))


def _svg_panel(curves: ResultCurves, top: int) -> Iterator[str]:
    metric = curves.metric
    estimates = [each for candidate in curves.candidates for each in candidate]
    axis = YAxis.for_metric(metric, estimates, top + _TOP)
    right, step = _LEFT + _plot_width(curves), _plot_width(curves) / len(curves.labels)
    yield svg_text(_LEFT, axis.top - 26, curves.title, weight="bold")
    for value in (axis.low, (axis.low + axis.high) / 2, axis.high):
        yield svg_line(_LEFT, axis.y(value), right, axis.y(value), "#ddd")
        yield svg_text(_LEFT - 6, axis.y(value) + 4, chart_label(metric, value), anchor="end")
    for number, label in enumerate(curves.labels):
        if len(label) > _MAX_LABEL_CHARS:
            label = f"{label[: _MAX_LABEL_CHARS - 1]}…"
        x, y = _LEFT + step * (number + 0.5), axis.top + PLOT_HEIGHT + 16
        yield svg_text(x, y, label, anchor="middle")
    if curves.x_title:
        center = (_LEFT + right) / 2
        yield svg_text(center, axis.top + PLOT_HEIGHT + 32, curves.x_title, anchor="middle")
    for candidate in range(len(curves.candidates)):
        yield from _svg_curve(curves, candidate, axis, step)


def _svg_curve(curves: ResultCurves, candidate: int, axis: YAxis, step: float) -> Iterator[str]:
    """One candidate; beside the others, so that whiskers do not cover each other."""
    color, points = candidate_color(candidate), []
    shift = 7 * (candidate - (len(curves.candidates) - 1) / 2)
    for number, estimate in enumerate(curves.candidates[candidate]):
        if estimate is None:
            continue
        x, y = round(_LEFT + step * (number + 0.5) + shift, 2), axis.y(estimate.value)
        points.append(f"{x},{y}")
        yield f'<circle cx="{x}" cy="{y}" r="3.5" fill="{color}"/>'
        if estimate.low is not None and estimate.high is not None:
            yield svg_line(x, axis.y(estimate.low), x, axis.y(estimate.high), color)
    yield f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="2"/>'
