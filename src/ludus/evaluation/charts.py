"""The results of an evaluation as charts: SVG files, and the curves that the viewer draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from ludus.data.estimates import MeanEstimate
from ludus.evaluation.metrics import ACCURACY, PASS_PREFIX, Metric
from ludus.evaluation.results import CandidateScore, Evaluation
from ludus.evaluation.slices import Slice

PLOT_HEIGHT, LINE_HEIGHT = 200, 20
_COLORS = ("#7a869a", "#2f6fde", "#d9662b", "#2a9d6f", "#9a4fc4", "#c9a227")


@dataclass(frozen=True, slots=True)
class YAxis:
    """Maps a value to a height on the page."""

    low: float
    high: float
    top: int

    @classmethod
    def for_metric(
        cls, metric: Metric, estimates: Sequence[MeanEstimate | None], top: int
    ) -> YAxis:
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
        low, high = _round_up(min([0.0, *ends])), _round_up(max([0.0, *ends]))
        return cls(low, high if high > low else low + 1, top)

    def y(self, value: float) -> float:
        fraction = (value - self.low) / (self.high - self.low)
        return round(self.top + PLOT_HEIGHT * (1 - fraction), 2)


def svg_document(width: int, height: int, elements: Sequence[str]) -> str:
    """Return the SVG file with these elements, on white."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="#222">'
    )
    background = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    return "\n".join([head, background, *elements, "</svg>\n"])


def svg_legend(labels: Sequence[str], left: float, top: float) -> list[str]:
    """Return the color of each candidate, and what the whiskers are."""
    legend = []
    for number, label in enumerate(labels):
        y, color = top + LINE_HEIGHT * (number + 0.5), candidate_color(number)
        legend += [
            f'<rect x="{left}" y="{y - 10}" width="12" height="12" fill="{color}"/>',
            svg_text(left + 18, y, label),
        ]
    last_y = top + LINE_HEIGHT * (len(labels) + 0.5)
    return [*legend, svg_text(left, last_y, "Whiskers: 95% confidence intervals")]


def legend_height(candidates: int) -> int:
    return LINE_HEIGHT * (candidates + 2)


def _round_up(value: float) -> float:
    """Round away from 0, to a number such as 1, 1.5, 2, 3 or 80."""
    if not value:
        return 0.0
    magnitude = 10.0 ** floor(log10(abs(value)))
    steps = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
    rounded = next(step for step in steps if step * magnitude >= abs(value) * 0.999) * magnitude
    return rounded if value > 0 else -rounded


def candidate_color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def chart_label(metric: Metric, value: float) -> str:
    """Return the label of a bar, or of a line of the axis."""
    if metric.is_share:
        return f"{100 * value:.3g}%"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def svg_line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}"/>'


def svg_text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal"
) -> str:
    attributes = f'x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {attributes}>{escape(text)}</text>"


@dataclass(frozen=True, slots=True)
class ResultCurves:
    """The same metric of all candidates at the same places."""

    title: str
    metric: Metric
    environment: str
    """The environment of the levels, if there are several; else empty."""
    x_title: str
    """What the labels are values of, such as `max_digits`; empty if they name it themselves."""
    labels: tuple[str, ...]
    candidates: tuple[tuple[MeanEstimate | None, ...], ...]
    """For each candidate an estimate at each label; None where there is none."""


def build_level_curves(evaluation: Evaluation) -> list[ResultCurves]:
    """Return the curves over levels of difficulty, for each metric and each environment."""
    levels: dict[str, list[Slice]] = {}
    for part in evaluation.slices:
        if part.level is not None:
            levels.setdefault(part.environment, []).append(part)
    return [
        _level_curves(metric, environment if len(levels) > 1 else "", parts)
        for metric in evaluation.verdict_metrics
        for environment, parts in levels.items()
    ]


def build_pass_curves(evaluation: Evaluation) -> Iterator[ResultCurves]:
    """Yield the curves over k, if there are several; accuracy is pass@1."""
    sizes = {1: ACCURACY}
    for metric in evaluation.shown_metrics:
        if metric.name.startswith(PASS_PREFIX):
            sizes[int(metric.name.removeprefix(PASS_PREFIX))] = metric.name
    if len(sizes) < 2:
        return
    accuracy = next(metric for metric in evaluation.metrics if metric.name == ACCURACY)
    candidates = tuple(
        tuple(score.estimates.get(sizes[k]) for k in sorted(sizes)) for score in evaluation.scores
    )
    yield ResultCurves("pass@k", accuracy, "", "k", tuple(map(str, sorted(sizes))), candidates)


def _level_curves(metric: Metric, environment: str, levels: Sequence[Slice]) -> ResultCurves:
    texts = [level.level or "" for level in levels]
    # A name that all levels have in common is said once.
    names = {text.partition("=")[0] for text in texts}
    common = names.pop() if len(names) == 1 and not any(" " in text for text in texts) else ""
    return ResultCurves(
        title=" ".join(
            part for part in (metric.title, environment, "by", common or "difficulty") if part
        ),
        metric=metric,
        environment=environment,
        x_title=common,
        labels=tuple(text.removeprefix(f"{common}=") if common else text for text in texts),
        candidates=tuple(
            tuple(level.estimates[number].get(metric.name) for level in levels)
            for number in range(len(levels[0].estimates))
        ),
    )


_BAR_WIDTH, _BAR_GAP, _BAR_LEFT_MARGIN = 46, 22, 58
_BAR_PLOT_TOP = 48
_BAR_PANEL_HEIGHT = _BAR_PLOT_TOP + PLOT_HEIGHT + LINE_HEIGHT
_MIN_PANEL_WIDTH, _PAGE_WIDTH = 130, 900


def render_chart(evaluation: Evaluation) -> str:
    """Return the SVG file, with as many panels in a row as fit on a page."""
    scores, metrics = evaluation.scores, evaluation.shown_metrics
    panel_width = _panel_width(scores)
    columns = min(max(1, _PAGE_WIDTH // panel_width), max(1, len(metrics)))
    panels = [
        line
        for number, metric in enumerate(metrics)
        for line in _bar_svg_panel(metric, scores, number % columns, number // columns)
    ]
    legend_top = max(1, ceil(len(metrics) / columns)) * _BAR_PANEL_HEIGHT
    labels = [score.label for score in scores]
    legend = svg_legend(labels, _BAR_LEFT_MARGIN, legend_top)
    width = columns * panel_width + _BAR_GAP
    height = legend_top + legend_height(len(labels))
    return svg_document(width, height, [*panels, *legend])


def _panel_width(scores: Sequence[CandidateScore]) -> int:
    """Return the width of a panel, which must also fit its title."""
    return _BAR_LEFT_MARGIN + max(_MIN_PANEL_WIDTH, len(scores) * (_BAR_WIDTH + _BAR_GAP))


def _bar_svg_panel(
    metric: Metric, scores: Sequence[CandidateScore], column: int, row: int
) -> Iterator[str]:
    estimates = [score.estimates.get(metric.name) for score in scores]
    axis = YAxis.for_metric(metric, estimates, _BAR_PLOT_TOP + row * _BAR_PANEL_HEIGHT)
    left, right = (
        column * _panel_width(scores) + _BAR_LEFT_MARGIN,
        (column + 1) * _panel_width(scores),
    )
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


_LEFT, _TOP, _RIGHT = 58, 48, 24
_STEP_WIDTH, _MIN_WIDTH = 90, 260
_LEVEL_PANEL_HEIGHT = _TOP + PLOT_HEIGHT + 2 * LINE_HEIGHT
_MAX_LABEL_CHARS = 14


def render_level_chart(evaluation: Evaluation) -> str | None:
    """Return the SVG file; None if no environment has levels of difficulty."""
    panels = build_level_curves(evaluation)
    if not panels:
        return None
    lines = [
        line
        for number, curves in enumerate(panels)
        for line in _level_svg_panel(curves, number * _LEVEL_PANEL_HEIGHT)
    ]
    legend_top = len(panels) * _LEVEL_PANEL_HEIGHT
    labels = [score.label for score in evaluation.scores]
    return svg_document(
        _LEFT + max(map(_plot_width, panels)) + _RIGHT,
        legend_top + legend_height(len(labels)),
        [*lines, *svg_legend(labels, _LEFT, legend_top)],
    )


def _plot_width(curves: ResultCurves) -> int:
    return max(_MIN_WIDTH, _STEP_WIDTH * len(curves.labels))


def _level_svg_panel(curves: ResultCurves, top: int) -> Iterator[str]:
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
