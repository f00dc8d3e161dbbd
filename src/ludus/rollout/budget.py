"""What a run may cost: dollars, tokens, time. It stops before it goes over, as far as it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ludus.data.episode import Usage
from ludus.rollout.stats import RunStats

INITIAL_CONCURRENCY = 4
"""Episodes at once while nobody knows yet what one costs."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits for a run; None: none."""

    max_cost: float | None = None
    """US dollars, over all starts of the run."""
    max_total_tokens: int | None = None
    """Prompts and completions, over all starts of the run."""
    max_time: float | None = None
    """Seconds since this start."""

    @property
    def limits_spending(self) -> bool:
        return self.max_cost is not None or self.max_total_tokens is not None

    def exhausted_reason(self, stats: RunStats, active: Sequence[Usage] = ()) -> str | None:
        """Why no further episode should be begun, or None.

        Episodes under way have spent something already, and will cost what episodes cost on
        average, or more if they have.
        """
        if self.max_time is not None and stats.seconds >= self.max_time:
            return f"--max-time {self.max_time:g} s is used up"
        if self.max_cost is not None:
            spent = _projected_spend(stats, active, lambda usage: usage.cost or 0.0)
            if spent > self.max_cost:
                return f"--max-cost ${self.max_cost:g} is used up"
        if self.max_total_tokens is not None:
            spent = _projected_spend(stats, active, lambda usage: usage.total_tokens)
            if spent > self.max_total_tokens:
                return f"--max-total-tokens {self.max_total_tokens:,} is used up"
        return None

    def max_active(self, stats: RunStats) -> float:
        """How many episodes may be under way.

        The shortest end first, so what one costs on average is known only bit by bit: no more are
        begun than that knowledge carries.
        """
        return INITIAL_CONCURRENCY + stats.costed_attempts if self.limits_spending else float("inf")


def _projected_spend(
    stats: RunStats, active: Sequence[Usage], price: Callable[[Usage], float]
) -> float:
    """What will have been spent when all that was begun, and one more, has ended."""
    finished = price(stats.usage_before) + price(stats.usage_now)
    mean = finished / stats.costed_attempts if stats.costed_attempts else 0.0
    return finished + mean + sum(max(mean, price(usage)) for usage in active)
