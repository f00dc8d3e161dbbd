"""Figures of a diagnosis as people read them: shares, rewards and what changed in them."""

from __future__ import annotations

from ludus.diagnose.reward_delta import RewardChange, RewardScale


def format_number(value: float, *, digits: int = 3, sign: str = "") -> str:
    """1,235, 123, 0.0123: so many digits, and what stands before the point in full."""
    if abs(value) < 10**digits - 0.5:
        return f"{value:{sign}.{digits}g}"
    return f"{value:{sign},.0f}"


def format_share(part: float) -> str:
    """0.954 -> 95 %; what is small, or nearly all, keeps a digit, so that it is not 0 or 100."""
    percent = 100 * part
    rounded = f"{percent:.0f}" if 1 <= percent <= 99 or percent in (0, 100) else f"{percent:.1f}"
    return f"{rounded} %"


def format_reward(value: float, scale: RewardScale) -> str:
    """In percent where 1 is all that there is to get."""
    return f"{100 * value:.1f} %" if scale.is_unit else format_number(value)


def format_delta(change: RewardChange) -> str:
    """+12.3 pp."""
    return _format_points(change.delta, change.scale)


def format_interval(change: RewardChange) -> str:
    """+8.1 to +16.5 pp; nothing where it is not known."""
    if change.interval is None:
        return ""
    low, high = (_format_points(value, change.scale) for value in change.interval)
    return f"{low.removesuffix(' pp')} to {high}"


def format_change_with_interval(change: RewardChange) -> str:
    """23.4 % -> 56.7 %, +33.3 pp (95 % interval +28.1 to +38.0 pp)."""
    sure = format_interval(change)
    return format_change(change) + (f" (95 % interval {sure})" if sure else "")


def format_change(change: RewardChange) -> str:
    """23.4 % -> 56.7 %, +33.3 pp."""
    initial, final = (
        format_reward(change.initial, change.scale),
        format_reward(change.final, change.scale),
    )
    return f"{initial} -> {final}, {format_delta(change)}"


def _format_points(delta: float, scale: RewardScale) -> str:
    return f"{100 * delta:+.1f} pp" if scale.is_unit else format_number(delta, sign="+")
