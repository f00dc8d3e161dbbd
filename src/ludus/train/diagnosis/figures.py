"""Figures of a diagnosis as people read them: shares, rewards and what changed in them."""

from __future__ import annotations

from ludus.train.diagnosis.change import Change, Scale


def number(value: float, *, digits: int = 3, sign: str = "") -> str:
    """1,235, 123, 0.0123: so many digits, and what stands before the point in full."""
    if abs(value) < 10**digits - 0.5:
        return f"{value:{sign}.{digits}g}"
    return f"{value:{sign},.0f}"


def share(part: float) -> str:
    """0.954 -> 95 %; what is small, or nearly all, keeps a digit, so that it is not 0 or 100."""
    percent = 100 * part
    rounded = f"{percent:.0f}" if 1 <= percent <= 99 or percent in (0, 100) else f"{percent:.1f}"
    return f"{rounded} %"


def reward(value: float, scale: Scale) -> str:
    """In percent where 1 is all that there is to get."""
    return f"{100 * value:.1f} %" if scale.unit else number(value)


def points(change: Change) -> str:
    """+12.3 pp."""
    return _points(change.delta, change.scale)


def bounds(change: Change) -> str:
    """+8.1 to +16.5 pp; nothing where it is not known."""
    if change.interval is None:
        return ""
    low, high = (_points(value, change.scale) for value in change.interval)
    return f"{low.removesuffix(' pp')} to {high}"


def moved(change: Change) -> str:
    """23.4 % -> 56.7 %, +33.3 pp (95 % interval +28.1 to +38.0 pp)."""
    sure = bounds(change)
    return brief(change) + (f" (95 % interval {sure})" if sure else "")


def brief(change: Change) -> str:
    """23.4 % -> 56.7 %, +33.3 pp."""
    initial, final = reward(change.initial, change.scale), reward(change.final, change.scale)
    return f"{initial} -> {final}, {points(change)}"


def _points(delta: float, scale: Scale) -> str:
    return f"{100 * delta:+.1f} pp" if scale.unit else number(delta, sign="+")
