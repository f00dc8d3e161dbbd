"""What an environment gives in the course of an episode, and what that comes to.

Whoever plays tells it of every result; what the model is shown of them is not its business.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from ludus.client.session import StepResult
from ludus.errors import BadEnvironment


@dataclass(slots=True)
class RewardSum:
    """An episode's so far."""

    step_rewards: list[float] = field(default_factory=list)
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    done: bool = False
    malformed_calls: int = 0

    def add(self, result: StepResult[dict[str, Any]]) -> None:
        """Take in what the environment gave."""
        self.malformed_calls += result.malformed
        self.done = result.done
        if result.reward is not None:
            self.step_rewards.append(_check_finite(result.reward))
        for name, part in result.rewards.items():
            self.parts[name] += _check_finite(part)

    @property
    def total(self) -> float | None:
        """The return. An environment that ends an episode without ever rewarding does not score."""
        return None if self.done and not self.step_rewards else math.fsum(self.step_rewards)


def _check_finite(reward: float) -> float:
    """A reward that can be summed."""
    value = float(reward)
    if not math.isfinite(value):
        raise BadEnvironment(f"The environment gave a reward that is no number: {reward!r}.")
    return value
