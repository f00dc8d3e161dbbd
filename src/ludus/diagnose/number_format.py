"""Numbers of a diagnosis as text: shares, rewards and reward changes."""

from __future__ import annotations

from ludus.diagnose.reward_delta import RewardChange, RewardScale


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


def format_reward(value: float, scale: RewardScale) -> str:
    """Format as percent where rewards lie between 0 and 1, else as a number."""
    return f"{100 * value:.1f} %" if scale.is_unit else format_number(value)


def format_delta(change: RewardChange) -> str:
    """+12.3 pp."""
    return _format_points(change.delta, change.scale)


def format_interval(change: RewardChange) -> str:
    """+8.1 to +16.5 pp; empty without an interval."""
    if change.interval is None:
        return ""
    low, high = (_format_points(value, change.scale) for value in change.interval)
    return f"{low.removesuffix(' pp')} to {high}"


def format_change(change: RewardChange) -> str:
    """23.4 % -> 56.7 %, +33.3 pp."""
    initial = format_reward(change.initial, change.scale)
    final = format_reward(change.final, change.scale)
    return f"{initial} -> {final}, {format_delta(change)}"


def format_change_with_interval(change: RewardChange) -> str:
    """23.4 % -> 56.7 %, +33.3 pp (95 % interval +28.1 to +38.0 pp)."""
    interval = format_interval(change)
    return format_change(change) + (f" (95 % interval {interval})" if interval else "")


def _format_points(delta: float, scale: RewardScale) -> str:
    return f"{100 * delta:+.1f} pp" if scale.is_unit else format_number(delta, sign="+")
