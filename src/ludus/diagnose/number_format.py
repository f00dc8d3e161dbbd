"""Numbers of a diagnosis as text."""

from __future__ import annotations


def format_number(value: float, *, digits: int = 3, sign: str = "") -> str:
    """Format with `digits` significant digits, and all digits before the point: 1,235, 0.0123."""
    if abs(value) < 10**digits - 0.5:
        return f"{value:{sign}.{digits}g}"
    return f"{value:{sign},.0f}"


def format_share(share: float) -> str:
    """Format as percent: 0.954 -> 95 %. Shares near 0 or 1 keep a digit: 0.996 -> 99.6 %."""
    percent = 100 * share
    rounded = f"{percent:.0f}" if 1 <= percent <= 99 or percent in (0, 100) else f"{percent:.1f}"
    return f"{rounded} %"
