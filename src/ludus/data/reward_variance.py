"""Zero-variance groups: attempts at one task that all got the same reward."""

from __future__ import annotations

from collections.abc import Sequence

REWARD_TOLERANCE = 1e-6
"""Relative difference up to which two rewards are equal. Sums of reward parts are not exact, and
trainers hold rewards in float32."""


def is_zero_variance(rewards: Sequence[float | None]) -> bool:
    """Whether a group has no learning signal: fewer than two scored attempts, or equal rewards."""
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) < 2:
        return True
    highest, lowest = max(scored), min(scored)
    return highest - lowest <= REWARD_TOLERANCE * max(1.0, abs(highest), abs(lowest))
