"""The figures as a picture: a panel a metric, a bar with its interval a candidate. Plain SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from ludus.evaluation.metrics import Estimate, Metric
from ludus.evaluation.results import CandidateScore, Evaluation

_COLORS = ("#7a869a", "#2f6fde", "#d9662b", "#2a9d6f", "#9a4fc4", "#c9a227")
_BAR_WIDTH, _BAR_GAP, _LEFT_MARGIN = 46, 22, 58
_PLOT_TOP, _PLOT_HEIGHT, _LINE_HEIGHT = 48, 200, 20
_PANEL_HEIGHT = _PLOT_TOP + _PLOT_HEIGHT + _LINE_HEIGHT
_MIN_PANEL_WIDTH, _PAGE_WIDTH = 130, 900


def render_chart(evaluation: Evaluation) -> str:
    """The whole file: as many panels beside each other as can still be read on a page."""
    width = _panel_width(evaluation.scores)
    beside = min(max(1, _PAGE_WIDTH // width), max(1, len(evaluation.shown_metrics)))
    lines = [
        line
        for number, metric in enumerate(evaluation.shown_metrics)
        for line in _panel(metric, evaluation.scores, number % beside, number // beside)
    ]
    below = max(1, ceil(len(evaluation.shown_metrics) / beside)) * _PANEL_HEIGHT
    wide, high = beside * width + _BAR_GAP, below + _LINE_HEIGHT * (len(evaluation.scores) + 2)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'height="{high}" font-family="sans-serif" font-size="12" fill="#222">'
    )
    ground = f'<rect width="{wide}" height="{high}" fill="#fff"/>'
    return "\n".join([head, ground, *lines, *_legend(evaluation.scores, below), "</svg>\n"])


@dataclass(frozen=True, slots=True)
class _YAxis:
    """From a value to a height on the page."""

    low: float
    high: float
    top: int

    def y(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low)
        return round(self.top + _PLOT_HEIGHT * (1 - part), 2)


def _panel_width(scores: Sequence[CandidateScore]) -> int:
    """Of a panel; its title has to have room too."""
    return _LEFT_MARGIN + max(_MIN_PANEL_WIDTH, len(scores) * (_BAR_WIDTH + _BAR_GAP))


def _panel(
    metric: Metric, scores: Sequence[CandidateScore], column: int, row: int
) -> Iterator[str]:
    found = [score.estimates.get(metric.name) for score in scores]
    low, high = (0.0, 1.0) if metric.is_share else _axis_range([one for one in found if one])
    scale = _YAxis(low, high, _PLOT_TOP + row * _PANEL_HEIGHT)
    left, right = column * _panel_width(scores) + _LEFT_MARGIN, (column + 1) * _panel_width(scores)
    yield _text(left, scale.top - 26, metric.title, weight="bold")
    for value in (low, (low + high) / 2, high):
        at = scale.y(value)
        yield _line(left, at, right, at, "#ddd")
        yield _text(left - 6, at + 4, _format_value(metric, value), anchor="end")
    for number, one in enumerate(found):
        if one is not None:
            at = left + _BAR_GAP / 2 + number * (_BAR_WIDTH + _BAR_GAP)
            yield from _bar(metric, one, scale, at, _color(number))


def _axis_range(found: Sequence[Estimate]) -> tuple[float, float]:
    """From 0, or below where values are, to a round number above all of them."""
    ends = [end for one in found for end in (one.value, one.low, one.high) if end is not None]
    low, high = _round_up(min(0.0, *ends)), _round_up(max(0.0, *ends))
    return low, high if high > low else low + 1


def _round_up(value: float) -> float:
    """The next number away from 0 with one digit that is not 0, or with a five behind it."""
    if not value:
        return 0.0
    size = 10.0 ** floor(log10(abs(value)))
    step = next(
        step for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * size >= abs(value) * 0.999
    )
    return step * size if value > 0 else -step * size


def _bar(metric: Metric, found: Estimate, scale: _YAxis, left: float, color: str) -> Iterator[str]:
    zero, top, middle = scale.y(0), scale.y(found.value), left + _BAR_WIDTH / 2
    upper, lower = min(zero, top), max(zero, top)
    yield (
        f'<rect x="{left}" y="{upper}" width="{_BAR_WIDTH}" height="{max(1.0, lower - upper):.2f}" '
        f'fill="{color}"/>'
    )
    highest = upper
    if found.low is not None and found.high is not None:
        low, high = scale.y(found.low), scale.y(found.high)
        highest = min(upper, high)
        yield _line(middle, high, middle, low, "#222")
        yield _line(middle - 6, high, middle + 6, high, "#222")
        yield _line(middle - 6, low, middle + 6, low, "#222")
    yield _text(middle, highest - 5, _format_value(metric, found.value), anchor="middle")


def _legend(scores: Sequence[CandidateScore], top: int) -> Iterator[str]:
    for number, score in enumerate(scores):
        y = top + _LINE_HEIGHT * (number + 0.5)
        yield f'<rect x="{_LEFT_MARGIN}" y="{y - 10}" width="12" height="12" fill="{_color(number)}"/>'
        yield _text(_LEFT_MARGIN + 18, y, score.label)
    last = top + _LINE_HEIGHT * (len(scores) + 0.5)
    yield _text(_LEFT_MARGIN, last, "Whiskers: 95% confidence intervals")


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def _format_value(metric: Metric, value: float) -> str:
    if metric.is_share:
        return f"{100 * value:.3g}%"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _line(x: float, y: float, to_x: float, to_y: float, color: str) -> str:
    return f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{color}"/>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal") -> str:
    place = f'x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place}>{escape(words)}</text>"
