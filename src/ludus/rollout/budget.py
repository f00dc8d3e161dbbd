"""What a run may cost: dollars, tokens, time. It stops before it goes over, as far as it can."""

from __future__ import annotations

from dataclasses import dataclass

from ludus.rollout.tally import Tally

SCOUTS = 4
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

    def reached(self, tally: Tally) -> str | None:
        """Why no further episode should be begun, or None.

        Those under way are counted as if they cost what episodes cost on average: they will be
        paid for too.
        """
        if self.max_time is not None and tally.seconds >= self.max_time:
            return f"--max-time {self.max_time:g} s is used up"
        ahead = 1.0 + tally.active / tally.fresh if tally.fresh else 1.0
        if self.max_cost is not None:
            before, now = tally.spent_before.cost or 0.0, tally.spent_now.cost or 0.0
            if before + now * ahead >= self.max_cost:
                return f"--max-cost ${self.max_cost:g} is used up"
        if self.max_total_tokens is not None:
            spent = tally.spent_before.total_tokens + tally.spent_now.total_tokens * ahead
            if spent >= self.max_total_tokens:
                return f"--max-total-tokens {self.max_total_tokens:,} is used up"
        return None

    def scouting(self, tally: Tally) -> bool:
        """Whether to go slowly, because it is not known yet what an episode costs."""
        limited = self.max_cost is not None or self.max_total_tokens is not None
        return limited and tally.fresh == 0 and tally.active >= SCOUTS
