"""A curriculum: each group's task is drawn from a bucket in which the model sometimes succeeds.

Two discounted counts are kept of each bucket of tasks: attempts with their successes, and groups
with those that had a learning signal. Buckets are drawn by Thompson sampling: both rates are
sampled from their Beta posteriors, and a bucket's weight is high if the success rate lies in the
band and groups have a signal. The latter matters for shaped rewards: attempts that are all half
right have a success rate in the band, and nothing to learn from.

Every rank has the same counts, because outcomes are gathered first, and so draws the same buckets.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ludus.data.episode import SOLVED_PART, Episode
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import BucketMetrics, bucket_log_fields
from ludus.environment.registry import find_environment
from ludus.environment.task_buckets import Bucket
from ludus.errors import LudusError
from ludus.train.output.record import BucketRecord

BAND = (0.2, 0.8)
"""Success rates at which a bucket has its full weight; it falls to 0 towards 0 and 1."""
EXPLORED_SHARE = 0.1
"""Share of groups whose bucket is drawn uniformly, so that none is forgotten."""
MAX_UNTRIED_SHARE = 0.5
"""Largest share of the groups of a step that try buckets for the first time."""
HALF_LIFE_STEPS = 20
"""Steps after which attempts count half, because the policy has changed."""
HALF_LIFE_SWEEPS = 8
"""Minimum half-life, in rounds over all buckets; matters if there are many."""


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

    def discount(self, factor: float) -> None:
        self.attempts *= factor
        self.successes *= factor
        self.groups *= factor
        self.groups_with_signal *= factor

    def add_group(self, successes: Sequence[float], has_signal: bool) -> None:
        """Add the successes, from 0 to 1, of the scored attempts at a task."""
        self.total_groups += 1
        self.total_attempts += len(successes)
        self.attempts += len(successes)
        self.successes += sum(successes)
        self.groups += bool(successes)
        self.groups_with_signal += bool(successes) and has_signal

    @property
    def success_rate(self) -> float | None:
        """The success rate now; None before the first attempt."""
        return self.successes / self.attempts if self.attempts else None

    def sample_weight(self, rng: random.Random) -> float:
        failures = max(0.0, self.attempts - self.successes)
        without_signal = max(0.0, self.groups - self.groups_with_signal)
        success_rate = rng.betavariate(1 + self.successes, 1 + failures)
        signal_rate = rng.betavariate(1 + self.groups_with_signal, 1 + without_signal)
        return band_weight(success_rate) * signal_rate + 1e-12


def band_weight(success_rate: float) -> float:
    """1 inside the band; outside of it falling to 0 with the square of the distance."""
    low, high = BAND
    return float(min(1.0, success_rate / low, (1 - success_rate) / (1 - high)) ** 2)


class Curriculum:
    """The buckets of a run and what was learned about them.

    Args:
        buckets: From easy to hard.
        groups: Groups per step.
        counts_environment: Whether the environment's own reward is trained on; else an attempt's
            success is measured by its total reward.
        state: What `state` returned, of a run that is resumed.
    """

    def __init__(
        self, buckets: Sequence[Bucket], *, groups: int, seed: int,
        counts_environment: bool = True, state: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.buckets, self._seed = tuple(buckets), seed
        self._decay = 0.5 ** (1 / max(HALF_LIFE_STEPS, HALF_LIFE_SWEEPS * len(buckets) / groups))
        self._counts_environment = counts_environment
        best = max(map(_max_reward, buckets)) if counts_environment else 0.0
        # Rewards range from 0 to the best possible one, or to observed ones beyond these bounds.
        state = state or {"buckets": [{} for _ in buckets], "lowest": 0.0, "highest": best}
        self.counts = [BucketCounts(**each) for each in state["buckets"]]
        self._lowest, self._highest = state["lowest"], state["highest"]
        self._drawn: dict[int, int] = {}
        """The bucket of each task of the step."""

    @property
    def state(self) -> JsonObject:
        """All that a resumed run needs to draw the same buckets."""
        counts = [asdict(each) for each in self.counts]
        return {"buckets": counts, "lowest": self._lowest, "highest": self._highest}

    def choose(self, number: int) -> tuple[str, JsonObject]:
        """Environment and arguments of a task whose bucket was drawn."""
        return self.buckets[self._drawn[number]].choice

    def draw(self, numbers: Sequence[int], key: str) -> Sequence[int]:
        """Draw the buckets of a step's tasks: deterministic, given outcomes, seed and key.

        Buckets that were never drawn come first, from easy to hard.
        """
        for each in self.counts:
            each.discount(self._decay)
        rng = random.Random(f"curriculum/{self._seed}/{key}")
        tried = [at for at, each in enumerate(self.counts) if each.total_groups]
        untried = [at for at, each in enumerate(self.counts) if not each.total_groups]
        drawn = untried[: max(1, int(MAX_UNTRIED_SHARE * len(numbers)))]
        candidates = [*tried, *drawn]
        while len(drawn) < len(numbers):
            if rng.random() < EXPLORED_SHARE:
                drawn.append(rng.choice(candidates))
            else:
                weights = [self.counts[at].sample_weight(rng) for at in candidates]
                drawn += rng.choices(candidates, weights)
        self._drawn = dict(zip(numbers, drawn, strict=True))
        return drawn

    def update(
        self, groups: Sequence[Sequence[Episode]], has_signal: Sequence[bool]
    ) -> dict[str, float]:
        """Learn from the attempts at the tasks of the last draw, in its order.

        `has_signal` says for each group whether its attempts differ, so that it can be trained on.
        Returns the groups and the success rate of each bucket that was drawn.
        """
        rewards = [self._reward(episode) for group in groups for episode in group]
        scored = [reward for reward in rewards if reward is not None]
        self._lowest = min([self._lowest, *scored])
        self._highest = max([self._highest, *scored])
        drawn = list(self._drawn.values())
        for bucket, group, signal in zip(drawn, groups, has_signal, strict=True):
            successes = [self._success(each) for each in group if each.reward is not None]
            self.counts[bucket].add_group(successes, signal)
        metrics: dict[str, float] = {}
        for at, count in sorted(Counter(drawn).items()):
            bucket_metrics = BucketMetrics(count, self.counts[at].success_rate)
            metrics |= bucket_log_fields(self.buckets[at].label, bucket_metrics)
        return metrics

    def record(self) -> tuple[BucketRecord, ...]:
        """The buckets for the record of the run."""
        total = sum(each.total_groups for each in self.counts) or 1
        return tuple(
            BucketRecord(
                label=bucket.label, attempts=counts.total_attempts,
                share=counts.total_groups / total, success=counts.success_rate,
            )
            for bucket, counts in zip(self.buckets, self.counts, strict=True)
        )  # fmt: skip

    def _success(self, episode: Episode) -> float:
        """Between 0 and 1: whether it was solved, or its reward within the range of rewards."""
        if self._counts_environment and SOLVED_PART in episode.rewards:
            return min(1.0, max(0.0, episode.rewards[SOLVED_PART]))
        reward, extent = self._reward(episode), self._highest - self._lowest
        return (reward - self._lowest) / extent if reward is not None and extent else 0.0

    def _reward(self, episode: Episode) -> float | None:
        if episode.reward is None or not self._counts_environment:
            return episode.reward
        return episode.rewards.get(episode.environment, episode.reward)


def _max_reward(bucket: Bucket) -> float:
    """The best possible reward; 0 if unknown: the observed rewards then set the range."""
    try:
        return float(getattr(find_environment(bucket.spec).cls, "max_reward", None) or 0.0)
    except LudusError:
        return 0.0
