"""Budget of a run: US dollars, tokens and time. A run stops before it exceeds them, if it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ludus.data.episode import Usage
from ludus.rollout.stats import RunStats

INITIAL_CONCURRENCY = 4
"""Concurrent episodes while the cost of an episode is unknown."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a run; None means unlimited. The fields are documented in `CollectConfig`."""

    max_cost: float | None = None
    max_total_tokens: int | None = None
    max_time: float | None = None

    @property
    def limits_spending(self) -> bool:
        return self.max_cost is not None or self.max_total_tokens is not None

    def exhausted_reason(self, stats: RunStats, active: Sequence[Usage] = ()) -> str | None:
        """Why no further episode should start, or None.

        `active` is the usage so far of the episodes in progress. Each is expected to use as much
        as the mean episode, or what it has used already if that is more.
        """
        if self.max_time is not None and stats.seconds >= self.max_time:
            return f"the time limit of {self.max_time:g} s is used up"
        if self.max_cost is not None:
            cost = _projected_spend(stats, active, lambda usage: usage.cost or 0.0)
            if cost > self.max_cost:
                return f"the cost limit of ${self.max_cost:g} is used up"
        if self.max_total_tokens is not None:
            tokens = _projected_spend(stats, active, lambda usage: usage.total_tokens)
            if tokens > self.max_total_tokens:
                return f"the token limit of {self.max_total_tokens:,} is used up"
        return None

    def max_active(self, stats: RunStats) -> float:
        """Maximum number of episodes in progress.

        The shortest episodes end first, so that the mean cost is underestimated at the beginning:
        concurrency grows with the number of episodes that have ended.
        """
        return INITIAL_CONCURRENCY + stats.costed_attempts if self.limits_spending else float("inf")


def _projected_spend(
    stats: RunStats, active: Sequence[Usage], price: Callable[[Usage], float]
) -> float:
    """The spending once all active episodes, and one more, have ended."""
    spent = price(stats.usage_before) + price(stats.usage_now)
    mean = spent / stats.costed_attempts if stats.costed_attempts else 0.0
    return spent + mean + sum(max(mean, price(usage)) for usage in active)
