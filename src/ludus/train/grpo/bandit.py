"""A bandit over buckets of tasks, which prefers those where some attempts succeed and some fail.

Of each bucket it keeps two discounted counts: attempts with their successes, and groups with those
that had a learning signal. Buckets are drawn by Thompson sampling: both rates are sampled from
their Beta posteriors, and a bucket's weight is high where the success rate lies in the band and
groups have a signal. The latter matters for shaped rewards: attempts that are all half right have
a success rate in the band, and nothing to learn from.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

BAND = (0.2, 0.8)
"""Success rates at which a bucket has its full weight; it falls to 0 towards 0 and 1."""
EXPLORED_SHARE = 0.1
"""Share of groups whose bucket is drawn from all alike, so that none is forgotten."""
MAX_UNTRIED_SHARE = 0.5
"""Largest share of the groups of a step that try buckets for the first time."""
HALF_LIFE_STEPS = 20
"""Steps after which attempts count half, because the policy has changed."""
HALF_LIFE_SWEEPS = 8
"""Where there are many buckets: times that all could be drawn once within a half-life."""


@dataclass(slots=True)
class BucketCounts:
    """What is known of a bucket; all but the totals are discounted."""

    total_groups: int = 0
    total_attempts: int = 0
    attempts: float = 0.0
    successes: float = 0.0
    """A partial success counts as a fraction."""
    groups: float = 0.0
    groups_with_signal: float = 0.0

    @property
    def success_rate(self) -> float | None:
        """The success rate now; None before the first attempt."""
        return self.successes / self.attempts if self.attempts else None


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What the attempts at one task of a bucket came to."""

    bucket: int
    successes: Sequence[float]
    """Between 0 and 1, of each attempt that was scored."""
    has_signal: bool
    """Whether the attempts have different rewards."""


@dataclass(slots=True)
class BucketBandit:
    """Draws buckets, which are numbered from easy to hard."""

    seed: int
    counts: list[BucketCounts]
    decay: float
    """What counts are multiplied by at each step."""

    @classmethod
    def create(cls, buckets: int, *, groups: int, seed: int) -> BucketBandit:
        """A bandit that has seen nothing; `groups` are drawn per step."""
        half_life = max(HALF_LIFE_STEPS, HALF_LIFE_SWEEPS * buckets / groups)
        counts = [BucketCounts() for _ in range(buckets)]
        return cls(seed, counts, decay=0.5 ** (1 / half_life))

    def forget(self) -> None:
        """Discount all counts by one step."""
        for each in self.counts:
            each.attempts *= self.decay
            each.successes *= self.decay
            each.groups *= self.decay
            each.groups_with_signal *= self.decay

    def draw(self, count: int, key: str) -> list[int]:
        """The buckets of `count` groups; the same for the same outcomes, seed and key.

        Those that were never drawn come first, from easy to hard.
        """
        rng = random.Random(f"curriculum/{self.seed}/{key}")
        tried = [at for at, each in enumerate(self.counts) if each.total_groups]
        untried = [at for at, each in enumerate(self.counts) if not each.total_groups]
        drawn = untried[: max(1, int(MAX_UNTRIED_SHARE * count))]
        candidates = [*tried, *drawn]
        while len(drawn) < count:
            if rng.random() < EXPLORED_SHARE:
                drawn.append(rng.choice(candidates))
            else:
                weights = [self._sample_weight(self.counts[at], rng) for at in candidates]
                drawn += rng.choices(candidates, weights)
        return drawn

    def update(self, outcomes: Sequence[GroupOutcome]) -> None:
        for outcome in outcomes:
            counts, attempts = self.counts[outcome.bucket], len(outcome.successes)
            counts.total_groups += 1
            counts.total_attempts += attempts
            if attempts:
                counts.attempts += attempts
                counts.successes += sum(outcome.successes)
                counts.groups += 1
                counts.groups_with_signal += outcome.has_signal

    def state(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self.counts]

    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        self.counts = [BucketCounts(**each) for each in state]

    @staticmethod
    def _sample_weight(counts: BucketCounts, rng: random.Random) -> float:
        failures = counts.attempts - counts.successes
        success_rate = rng.betavariate(1 + counts.successes, 1 + max(0.0, failures))
        without_signal = counts.groups - counts.groups_with_signal
        signal_rate = rng.betavariate(1 + counts.groups_with_signal, 1 + max(0.0, without_signal))
        return band_weight(success_rate) * signal_rate + 1e-12


def band_weight(success_rate: float) -> float:
    """1 in the band, and falling with the square of the distance from it to 0."""
    low, high = BAND
    return float(min(1.0, success_rate / low, (1 - success_rate) / (1 - high)) ** 2)
