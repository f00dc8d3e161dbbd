"""Sums up the rewards of an episode."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from ludus.errors import BadEnvironment
from ludus.protocol.types import StepResult


@dataclass(slots=True)
class RewardSum:
    """The rewards of an episode so far, and whether it is done."""

    step_rewards: list[float] = field(default_factory=list)
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Sums of the named parts of the rewards."""
    done: bool = False
    malformed_calls: int = 0

    def add(self, result: StepResult[dict[str, Any]]) -> None:
        """Add the result of a reset or a step."""
        self.malformed_calls += result.malformed
        self.done = result.done
        if result.reward is not None:
            self.step_rewards.append(_check_finite(result.reward))
        for name, part in result.rewards.items():
            self.parts[name] += _check_finite(part)

    @property
    def total(self) -> float | None:
        """The return; None (unscored) where the episode ended and no result had a reward."""
        return None if self.done and not self.step_rewards else math.fsum(self.step_rewards)


def _check_finite(reward: float) -> float:
    value = float(reward)
    if not math.isfinite(value):
        raise BadEnvironment(f"The environment returned a reward that is not finite: {reward!r}.")
    return value
