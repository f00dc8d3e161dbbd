"""The rewards and the progress of an episode, in sum and by turn."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ludus.errors import BadEnvironment
from ludus.protocol.types import StepResult


@dataclass(slots=True)
class RewardSum:
    """The rewards and the progress of an episode so far, and whether it is done."""

    step_rewards: list[float] = field(default_factory=list)
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Sums of the named parts of the rewards."""
    done: bool = False
    malformed_calls: int = 0
    progress: list[float] = field(default_factory=list)
    """After the reset and after each turn; empty where the environment gives none."""
    _turn_starts: list[int] = field(default_factory=list)
    """For each turn, how many step rewards there were before it."""

    def begin_turn(self) -> None:
        """Results that are added from now on belong to the next turn."""
        # A reward of the reset counts to the first turn.
        self._turn_starts.append(len(self.step_rewards) if self._turn_starts else 0)
        # Without a call, or with a malformed one, the progress stays what it was.
        self.progress += self.progress[-1:]

    def add(self, result: StepResult[dict[str, Any]]) -> None:
        """Add the result of a reset or a step."""
        self.malformed_calls += result.malformed
        self.done = result.done
        if result.reward is not None:
            self.step_rewards.append(_check_finite(result.reward))
        if result.progress is not None and (self.progress or not self._turn_starts):
            self.progress[-1:] = [result.progress]
        for name, part in result.rewards.items():
            self.parts[name] += _check_finite(part)

    @property
    def total(self) -> float | None:
        """The return; None (unscored) where the episode ended and no result had a reward."""
        return None if self.done and not self.step_rewards else math.fsum(self.step_rewards)

    @property
    def turn_rewards(self) -> tuple[float, ...]:
        """The reward of each turn; empty where the episode is unscored."""
        if self.total is None:
            return ()
        bounds = pairwise([*self._turn_starts, len(self.step_rewards)])
        return tuple(math.fsum(self.step_rewards[start:end]) for start, end in bounds)


def _check_finite(reward: float) -> float:
    value = float(reward)
    if not math.isfinite(value):
        raise BadEnvironment(f"The environment returned a reward that is not finite: {reward!r}.")
    return value
