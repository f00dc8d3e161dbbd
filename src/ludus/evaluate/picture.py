"""The figures as a picture: a panel a metric, a bar with its interval a candidate. Plain SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

from ludus.evaluate.evaluation import Evaluation, Score
from ludus.evaluate.metrics import Estimate, Metric

_COLORS = ("#7a869a", "#2f6fde", "#d9662b", "#2a9d6f", "#9a4fc4", "#c9a227")
_BAR, _GAP, _MARGIN = 46, 22, 58
_TOP, _HEIGHT, _LINE = 44, 200, 20


def picture(evaluation: Evaluation) -> str:
    """The whole file."""
    panels = [
        _panel(metric, evaluation.scores, number * _width(evaluation.scores))
        for number, metric in enumerate(evaluation.shown)
    ]
    wide = max(1, len(panels)) * _width(evaluation.scores) + _GAP
    high = _TOP + _HEIGHT + _LINE * (len(evaluation.scores) + 2)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'height="{high}" font-family="sans-serif" font-size="12" fill="#222">'
    )
    ground = f'<rect width="{wide}" height="{high}" fill="#fff"/>'
    legend = list(_legend(evaluation.scores))
    return "\n".join(
        [head, ground, *(line for panel in panels for line in panel), *legend, "</svg>\n"]
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """From a value to a height on the page."""

    low: float
    high: float

    def y(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low)
        return round(_TOP + _HEIGHT * (1 - part), 2)


def _width(scores: Sequence[Score]) -> int:
    return _MARGIN + len(scores) * (_BAR + _GAP)


def _panel(metric: Metric, scores: Sequence[Score], left: int) -> list[str]:
    found = [score.estimates.get(metric.name) for score in scores]
    scale = _Scale(0, 1) if metric.share else _fitting([one for one in found if one])
    right = left + _width(scores)
    lines = [_text(left + _MARGIN, _TOP - 22, metric.title, weight="bold")]
    for value in (scale.low, (scale.low + scale.high) / 2, scale.high):
        at = scale.y(value)
        lines.append(_rule(left + _MARGIN, at, right, at, "#ddd"))
        lines.append(_text(left + _MARGIN - 6, at + 4, _told(metric, value), anchor="end"))
    for number, one in enumerate(found):
        if one is not None:
            at = left + _MARGIN + _GAP / 2 + number * (_BAR + _GAP)
            lines += _bar(metric, one, scale, at, _color(number))
    return lines


def _fitting(found: Sequence[Estimate]) -> _Scale:
    """From 0, or below where values are, to a round number above all of them."""
    ends = [end for one in found for end in (one.value, one.low, one.high) if end is not None]
    low, high = _round(min(0.0, *ends)), _round(max(0.0, *ends))
    return _Scale(low, high if high > low else low + 1)


def _round(value: float) -> float:
    """The next number away from 0 with one digit that is not 0, or with a five behind it."""
    if not value:
        return 0.0
    size = 10.0 ** floor(log10(abs(value)))
    step = next(
        step for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * size >= abs(value) * 0.999
    )
    return step * size if value > 0 else -step * size


def _bar(metric: Metric, found: Estimate, scale: _Scale, left: float, color: str) -> Iterator[str]:
    zero, top, middle = scale.y(0), scale.y(found.value), left + _BAR / 2
    upper, lower = min(zero, top), max(zero, top)
    yield (
        f'<rect x="{left}" y="{upper}" width="{_BAR}" height="{max(1.0, lower - upper):.2f}" '
        f'fill="{color}"/>'
    )
    highest = upper
    if found.low is not None and found.high is not None:
        low, high = scale.y(found.low), scale.y(found.high)
        highest = min(upper, high)
        yield _rule(middle, high, middle, low, "#222")
        yield _rule(middle - 6, high, middle + 6, high, "#222")
        yield _rule(middle - 6, low, middle + 6, low, "#222")
    yield _text(middle, highest - 5, _told(metric, found.value), anchor="middle")


def _legend(scores: Sequence[Score]) -> Iterator[str]:
    for number, score in enumerate(scores):
        y = _TOP + _HEIGHT + _LINE * (number + 1.5)
        yield f'<rect x="{_MARGIN}" y="{y - 10}" width="12" height="12" fill="{_color(number)}"/>'
        yield _text(_MARGIN + 18, y, score.label)


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def _told(metric: Metric, value: float) -> str:
    return f"{100 * value:.3g}%" if metric.share else f"{value:.3g}"


def _rule(x: float, y: float, to_x: float, to_y: float, color: str) -> str:
    return f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{color}"/>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal") -> str:
    place = f'x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place}>{escape(words)}</text>"
