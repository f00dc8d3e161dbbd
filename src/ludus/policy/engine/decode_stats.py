"""Counters of an engine's work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DecodeStats:
    """Counters that only grow; the difference of two copies covers the time between them."""

    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    """Prompt tokens that went through the model."""
    reused_tokens: int = 0
    """Prompt tokens that were skipped, because their keys and values were cached or shared."""
    busy_s: float = 0.0
    """Seconds in which at least one request was being processed."""
