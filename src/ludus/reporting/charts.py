"""Charts of a report as inline SVG. Colors are classes of the page's style, for light and dark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import floor, log10

from ludus.reporting.document import BarChart, Chart, Histogram, IntervalChart, LineChart
from ludus.reporting.html import Html, element

WIDTH, HEIGHT = 420, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 14, 14, 34
_MAX_POINTS = 160
_SMOOTHING = 1 / 40
"""Part of the x axis over which all lines are smoothed to either side, over the raw ones."""
_MAX_DOTS = 12
"""Lines with more points are drawn without dots."""
_MAX_DISTINCT = 12
"""A histogram of more different values has `_BINS` bars."""
_BINS = 20
_ROW_HEIGHT = 30
_LABEL_WIDTH = 120
_MAX_LABEL_CHARS = 20


def render_chart(chart: Chart) -> Html:
    """Return the chart as a figure with its title."""
    match chart:
        case LineChart():
            svg = _line_chart(chart)
        case Histogram():
            svg = _histogram(chart)
        case IntervalChart():
            svg = _interval_chart(chart)
        case BarChart():
            svg = _bar_chart(chart)
    return element("figure", element("figcaption", chart.title), svg)


def _svg(height: float, label: str, *children: Html) -> Html:
    return element(
        "svg", *children, viewBox=f"0 0 {WIDTH} {height:.0f}", role="img", aria_label=label
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", class_: str = "tick") -> Html:
    return element("text", text, x=float(x), y=float(y), text_anchor=anchor, class_=class_)


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    return element("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def _line_chart(chart: LineChart) -> Html:
    series = [(each.label, _thin(each.points)) for each in chart.series]
    points = [point for _, each in series for point in each]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_low, x_high = min(xs), max(xs)
    ticks = _ticks(min(ys), max(ys))
    x_span, y_span = (x_high - x_low) or 1, (ticks[-1] - ticks[0]) or 1
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (right - _LEFT) * (x - x_low) / x_span,
            bottom - (bottom - _TOP) * (y - ticks[0]) / y_span,
        )

    parts = []
    for tick in ticks:
        y = place(x_low, tick)[1]
        parts += [
            _line(_LEFT, y, right, y, "grid"),
            _text(_LEFT - 6, y + 4, _number(tick), anchor="end"),
        ]
    for x, anchor in ((x_low, "start"), (x_high, "end")):
        parts.append(_text(place(x, ticks[0])[0], bottom + 16, _number(x), anchor=anchor))
    parts.append(_text((_LEFT + right) / 2, bottom + 16, chart.x_label, anchor="middle"))
    for number, (label, each) in enumerate(series):
        color = f"series-{number % 4}"
        if (smoothed := _smooth(each, _SMOOTHING * (x_high - x_low))) != each:
            parts.append(_curve([place(x, y) for x, y in each], f"raw {color}"))
            each = smoothed
        places = [place(x, y) for x, y in each]
        parts.append(_curve(places, color))
        if len(places) <= _MAX_DOTS:
            parts += [
                element("circle", cx=x, cy=y, r=3.0, class_=f"dot {color}") for x, y in places
            ]
        if len(series) > 1:
            x = _LEFT + 6 + 150 * number
            parts += [
                _line(x, _TOP - 5, x + 14, _TOP - 5, f"curve {color}"),
                _text(x + 19, _TOP - 1, label),
            ]
    return _svg(HEIGHT, chart.title, *parts)


def _curve(places: Sequence[tuple[float, float]], class_: str) -> Html:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return element("polyline", points=points, class_=f"curve {class_}")


def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `_MAX_POINTS`: the means of neighbours."""
    size = max(1, -(-len(points) // _MAX_POINTS))
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    return [(chunk[-1][0], sum(y for _, y in chunk) / len(chunk)) for chunk in chunks]


def _smooth(points: Sequence[tuple[float, float]], reach: float) -> list[tuple[float, float]]:
    """Means over all points up to `reach` before and after each, over fewer at the ends."""
    smoothed = []
    for x, _ in points:
        near = min(reach, x - points[0][0], points[-1][0] - x)
        window = [y for other, y in points if abs(other - x) <= near]
        smoothed.append((x, sum(window) / len(window)))
    return smoothed


def _histogram(chart: Histogram) -> Html:
    bars = _bins(chart.values)
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    highest, step = max(count for _, count in bars), (right - _LEFT) / len(bars)
    parts = []
    for tick in _ticks(0, highest)[:-1] if highest > 4 else (0, highest):
        y = bottom - (bottom - _TOP) * tick / highest
        if y < _TOP - 1:
            continue
        parts += [
            _line(_LEFT, y, right, y, "grid"),
            _text(_LEFT - 6, y + 4, _number(tick), anchor="end"),
        ]
    every = -(-len(bars) // 6)
    for number, (label, count) in enumerate(bars):
        height = (bottom - _TOP) * count / highest
        x = _LEFT + step * number
        parts.append(
            element(
                "rect", x=x + step * 0.1, y=bottom - height, width=step * 0.8, height=height,
                class_="bar series-0", rx=2,
            )
        )  # fmt: skip
        if number % every == 0:
            parts.append(_text(x + step / 2, bottom + 16, label, anchor="middle"))
    return _svg(HEIGHT, chart.title, *parts)


def _bins(values: Sequence[float]) -> list[tuple[str, int]]:
    """A bar for each value, or for equal ranges of many different values."""
    counts = Counter(round(value, 6) for value in values)
    if len(counts) <= _MAX_DISTINCT:
        return [(_number(value), counts[value]) for value in sorted(counts)]
    low, high = min(values), max(values)
    width = (high - low) / _BINS
    bins = Counter(min(_BINS - 1, int((value - low) / width)) for value in values)
    return [(_number(low + width * (number + 0.5)), bins[number]) for number in range(_BINS)]


def _interval_chart(chart: IntervalChart) -> Html:
    ends = [end for _, *ends in chart.rows for end in ends if end is not None]
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if chart.is_share else _ticks(min(0, *ends), max(ends))
    left, right = _LABEL_WIDTH, WIDTH - 24
    span = (ticks[-1] - ticks[0]) or 1
    bottom = _TOP + _ROW_HEIGHT * len(chart.rows)

    def place(value: float) -> float:
        return left + (right - left) * (value - ticks[0]) / span

    parts = []
    for tick in ticks:
        label = f"{100 * tick:.0f} %" if chart.is_share else _number(tick)
        parts += [
            _line(place(tick), _TOP, place(tick), bottom, "grid"),
            _text(place(tick), bottom + 16, label, anchor="middle"),
        ]
    for number, (label, value, low, high) in enumerate(chart.rows):
        y = _TOP + _ROW_HEIGHT * (number + 0.6)
        color = f"series-{(number if chart.color is None else chart.color) % 4}"
        parts.append(_text(left - 10, y + 4, _shorten(label), anchor="end", class_="label"))
        if low is not None and high is not None:
            parts.append(_line(place(low), y, place(high), y, f"whisker {color}"))
        parts.append(element("circle", cx=place(value), cy=y, r=5.0, class_=f"dot {color}"))
        shown = f"{100 * value:.1f} %" if chart.is_share else _number(value)
        near_end = place(value) > right - 60
        x = place(value) + (-9 if near_end else 9)
        parts.append(_text(x, y - 7, shown, anchor="end" if near_end else "start"))
    return _svg(bottom + 24, chart.title, *parts)


def _bar_chart(chart: BarChart) -> Html:
    highest = max((count for _, count in chart.rows), default=0) or 1
    left, right, parts = _LABEL_WIDTH + 10, WIDTH - 60, []
    for number, (label, count) in enumerate(chart.rows):
        y = 8 + _ROW_HEIGHT * number
        width = max(1.0, (right - left) * count / highest)
        parts += [
            _text(left - 8, y + 15, _shorten(label), anchor="end", class_="label"),
            element(
                "rect", x=float(left), y=y + 2.0, width=width, height=18.0, rx=3,
                class_="bar series-0",
            ),
            _text(left + width + 6, y + 15, f"{count:,}"),
        ]  # fmt: skip
    return _svg(16 + _ROW_HEIGHT * len(chart.rows), chart.title, *parts)


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers that enclose the range."""
    if high == low:
        high, low = high + (abs(high) or 1) / 2, low - (abs(low) or 1) / 2
    rough = (high - low) / 4
    magnitude = 10.0 ** floor(log10(rough))
    step = next(each * magnitude for each in (1, 2, 2.5, 5, 10) if each * magnitude >= rough * 0.99)
    first, last = floor(low / step + 1e-9), -floor(-high / step + 1e-9)
    return [number * step for number in range(int(first), int(last) + 1)]


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _shorten(label: str) -> str:
    return label if len(label) <= _MAX_LABEL_CHARS else f"{label[: _MAX_LABEL_CHARS - 1]}…"
