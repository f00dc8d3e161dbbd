"""What a model has been asked to do so far, counted. Who asks, and how it is done, is not its
business."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DecodeStats:
    """Counters that only grow; whoever wants the figures of a while takes the difference."""

    sampled_tokens: int = 0
    """Tokens that the model chose."""
    prefilled_tokens: int = 0
    """Tokens of prompts that went through the model."""
    reused_tokens: int = 0
    """Tokens of prompts that did not have to, because they were known from before."""
    busy_s: float = 0.0
    """Seconds in which somebody was being answered."""
