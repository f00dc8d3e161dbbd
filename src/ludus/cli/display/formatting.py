"""Numbers and times as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.data.interval_estimates import format_mean


def format_count(number: float) -> str:
    """1234 -> 1,234; 1234567 -> 1.23M."""
    for size, letter in ((1e9, "G"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.2f}{letter}"
    return f"{number:,.0f}"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_dollars(cost: float | None) -> str:
    """1.5 -> $1.50; 0.0123 -> $0.0123."""
    if cost is None:
        return ""
    return f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"


def format_clock(seconds: float) -> str:
    """75 -> 1:15; 3675 -> 1:01:15."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_time_left(seconds: float) -> str:
    """42 -> ~42 s; 200 -> ~3 min; 5000 -> ~1 h 23 min."""
    if seconds < 99.5:
        return f"~{round(seconds)} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"~{hours} h {rest} min" if hours else f"~{minutes} min"


def format_rate(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def format_counts(counts: Mapping[str, int]) -> str:
    """Counts, highest first: ModelBusy 12, SessionLost 3."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {number:,}" for name, number in ordered if number)


def format_change(first: float | None, last: float | None) -> str | None:
    """2.1, 0.35 -> 2.1 -> 0.35; None if either is missing."""
    return None if first is None or last is None else f"{first:.4g} -> {last:.4g}"


def format_reward(summary: Mapping[str, Any], *, label: str = "") -> str:
    """The mean reward of a run's summary, with its 95 % interval in brackets."""
    if summary["mean_reward"] is None:
        return "unscored" if summary["episodes"] else ""
    return format_mean(summary["mean_reward"], summary["reward_interval"], label=label)
