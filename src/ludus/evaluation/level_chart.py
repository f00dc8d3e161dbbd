"""The results by difficulty as an SVG line chart: a panel per metric, a line per candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ludus.evaluation.metrics import Metric
from ludus.evaluation.results import Evaluation
from ludus.evaluation.slices import Slice
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
    levels = [each for each in evaluation.slices if each.level is not None]
    if len(levels) < 2:
        return None
    panels = [
        line
        for number, metric in enumerate(evaluation.verdict_metrics)
        for line in _svg_panel(metric, levels, number * _PANEL_HEIGHT)
    ]
    legend_top = len(evaluation.verdict_metrics) * _PANEL_HEIGHT
    labels = [score.label for score in evaluation.scores]
    return svg_document(
        _LEFT + _plot_width(levels) + _RIGHT,
        legend_top + legend_height(len(labels)),
        [*panels, *svg_legend(labels, _LEFT, legend_top)],
    )


def _plot_width(levels: Sequence[Slice]) -> int:
    return max(_MIN_WIDTH, _STEP_WIDTH * len(levels))


def _svg_panel(metric: Metric, levels: Sequence[Slice], top: int) -> Iterator[str]:
    estimates = [each.get(metric.name) for level in levels for each in level.estimates]
    axis = YAxis.for_metric(metric, estimates, top + _TOP)
    right, step = _LEFT + _plot_width(levels), _plot_width(levels) / len(levels)
    # A name that all levels have in common stands once, below the axis.
    names = {(level.level or "").partition("=")[0] for level in levels}
    common = names.pop() if len(names) == 1 and " " not in (levels[0].level or "") else ""
    yield svg_text(_LEFT, axis.top - 26, metric.title, weight="bold")
    for value in (axis.low, (axis.low + axis.high) / 2, axis.high):
        yield svg_line(_LEFT, axis.y(value), right, axis.y(value), "#ddd")
        yield svg_text(_LEFT - 6, axis.y(value) + 4, chart_label(metric, value), anchor="end")
    for number, level in enumerate(levels):
        label = (level.level or "").removeprefix(f"{common}=") if common else level.level or ""
        if len(label) > _MAX_LABEL_CHARS:
            label = f"{label[: _MAX_LABEL_CHARS - 1]}…"
        x, y = _LEFT + step * (number + 0.5), axis.top + PLOT_HEIGHT + 16
        yield svg_text(x, y, label, anchor="middle")
    if common:
        center = (_LEFT + right) / 2
        yield svg_text(center, axis.top + PLOT_HEIGHT + 32, common, anchor="middle")
    for candidate in range(len(levels[0].estimates)):
        yield from _svg_curve(metric, levels, candidate, axis, step)


def _svg_curve(
    metric: Metric, levels: Sequence[Slice], candidate: int, axis: YAxis, step: float
) -> Iterator[str]:
    """One candidate; beside the others, so that whiskers do not cover each other."""
    color, points = candidate_color(candidate), []
    shift = 7 * (candidate - (len(levels[0].estimates) - 1) / 2)
    for number, level in enumerate(levels):
        estimate = level.estimates[candidate].get(metric.name)
        if estimate is None:
            continue
        x, y = round(_LEFT + step * (number + 0.5) + shift, 2), axis.y(estimate.value)
        points.append(f"{x},{y}")
        yield f'<circle cx="{x}" cy="{y}" r="3.5" fill="{color}"/>'
        if estimate.low is not None and estimate.high is not None:
            yield svg_line(x, axis.y(estimate.low), x, axis.y(estimate.high), color)
    yield f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="2"/>'
