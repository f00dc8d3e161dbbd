"""Parts that the charts of an evaluation share: axis, legend and elements of SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

from ludus.data.task_mean import MeanEstimate
from ludus.evaluation.metrics import Metric

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
