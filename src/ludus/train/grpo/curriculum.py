"""A curriculum: each group's task is drawn from a bucket in which the model sometimes succeeds.

A bandit keeps two discounted counts of each bucket of tasks: attempts with their successes, and
groups with those that had a learning signal. Buckets are drawn by Thompson sampling: both rates are
sampled from their Beta posteriors, and a bucket's weight is high if the success rate lies in the
band and groups have a signal. The latter matters for shaped rewards: attempts that are all half
right have a success rate in the band, and nothing to learn from.

Every rank has the same state, because outcomes are gathered before the bandit learns of them, and
so every rank draws the same buckets.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ludus.data.episode import SOLVED_PART, Episode
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import BucketMetrics, bucket_log_fields
from ludus.environment.registry import find_environment
from ludus.environment.task_buckets import Bucket
from ludus.errors import LudusError
from ludus.train.output.record import BucketRecord

if TYPE_CHECKING:
    from ludus.train.context import GRPOContext
    from ludus.train.output.checkpoints import CheckpointState


class Curriculum:
    """The buckets of a run and what was learned about them.

    Args:
        buckets: From easy to hard.
        groups: Groups per step.
        seed: The seed of the run.
        counts_environment: Whether the environment's own reward is trained on; else an attempt's
            success is measured by its total reward.
        state: What `state` returned, of a run that is resumed.
    """

    def __init__(
        self, buckets: Sequence[Bucket], *, groups: int, seed: int,
        counts_environment: bool = True, state: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.buckets = tuple(buckets)
        self._bandit = BucketBandit.create(len(buckets), groups=groups, seed=seed)
        self._counts_environment = counts_environment
        best = max(map(_max_reward, buckets)) if counts_environment else 0.0
        self._lowest, self._highest = 0.0, best
        """The range of rewards: 0 and the best possible one, or what was seen beyond them."""
        if state:
            self._bandit.counts = [BucketCounts(**counts) for counts in state["buckets"]]
            self._lowest, self._highest = state["lowest"], state["highest"]
        self._step_groups: Counter[int] = Counter()
        self._drawn: list[int] = []
        self._bucket_of: dict[int, int] = {}

    @property
    def state(self) -> JsonObject:
        """All that a resumed run needs to draw the same buckets."""
        return {
            "buckets": [asdict(counts) for counts in self._bandit.counts],
            "lowest": self._lowest, "highest": self._highest,
        }  # fmt: skip

    def choose(self, number: int) -> tuple[str, JsonObject]:
        """Environment and arguments of a task whose bucket was drawn."""
        return self.buckets[self._bucket_of[number]].choice

    def start_step(self) -> None:
        """Before the first draw of a step."""
        self._bandit.forget()
        self._step_groups.clear()
        self._bucket_of.clear()

    def draw(self, numbers: Sequence[int], key: str) -> None:
        """Draw the buckets of these tasks, one for each group; `key` names the draw."""
        self._drawn = self._bandit.draw(len(numbers), key)
        self._step_groups.update(self._drawn)
        self._bucket_of.update(zip(numbers, self._drawn, strict=True))

    def update(self, groups: Sequence[Sequence[Episode]], has_signal: Sequence[bool]) -> None:
        """Learn from the attempts at the tasks of the last draw, in its order.

        `has_signal` says of each group whether its attempts differ, so that it can be trained on.
        """
        rewards = [self._reward(episode) for group in groups for episode in group]
        scored = [reward for reward in rewards if reward is not None]
        self._lowest = min([self._lowest, *scored])
        self._highest = max([self._highest, *scored])
        for bucket, group, signal in zip(self._drawn, groups, has_signal, strict=True):
            successes = [self._success(each) for each in group if each.reward is not None]
            self._bandit.counts[bucket].add_group(successes, has_signal=signal)

    def step_metrics(self) -> dict[str, float]:
        """Groups and success rate of each bucket that the step drew."""
        metrics: dict[str, float] = {}
        for at, groups in sorted(self._step_groups.items()):
            success = self._bandit.counts[at].success_rate
            metrics |= bucket_log_fields(self.buckets[at].label, BucketMetrics(groups, success))
        return metrics

    def record(self) -> tuple[BucketRecord, ...]:
        """The buckets for the record of the run."""
        total = sum(each.total_groups for each in self._bandit.counts) or 1
        return tuple(
            BucketRecord(
                label=bucket.label, attempts=counts.total_attempts,
                share=counts.total_groups / total, success=counts.success_rate,
            )
            for bucket, counts in zip(self.buckets, self._bandit.counts, strict=True)
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


def build_curriculum(context: GRPOContext, state: CheckpointState | None) -> Curriculum | None:
    """The curriculum of a run, which resumes from `state`; None if it has none."""
    if not context.buckets:
        return None
    return Curriculum(
        context.buckets, groups=context.config.groups, seed=context.config.seed,
        counts_environment=context.rewards.environment_weight != 0,
        state=state.curriculum if state else None,
    )  # fmt: skip


def _max_reward(bucket: Bucket) -> float:
    """The best possible reward; 0 if unknown: the observed rewards then set the range."""
    try:
        return float(getattr(find_environment(bucket.spec).cls, "max_reward", None) or 0.0)
    except LudusError:
        return 0.0


BAND = (0.2, 0.8)
"""Success rates at which a bucket has its full weight; it falls to 0 towards 0 and 1."""
EXPLORED_SHARE = 0.1
"""Share of groups whose bucket is drawn from all alike, so that none is forgotten."""
MAX_UNTRIED_SHARE = 0.5
"""Largest share of the groups of a step that try buckets for the first time."""
HALF_LIFE_STEPS = 20
"""Steps after which attempts count half, because the policy has changed."""
HALF_LIFE_SWEEPS = 8
"""If there are many buckets: times that all could be drawn once within a half-life."""


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

    def add_group(self, successes: Sequence[float], *, has_signal: bool) -> None:
        """Count a group by the success of its scored attempts, each between 0 and 1.

        `has_signal`: whether the attempts have different rewards.
        """
        self.total_groups += 1
        self.total_attempts += len(successes)
        if successes:
            self.attempts += len(successes)
            self.successes += sum(successes)
            self.groups += 1
            self.groups_with_signal += has_signal

    @property
    def success_rate(self) -> float | None:
        """The success rate now; None before the first attempt."""
        return self.successes / self.attempts if self.attempts else None


@dataclass(slots=True)
class BucketBandit:
    """Draws buckets, which are numbered from easy to hard."""

    seed: int
    counts: list[BucketCounts]
    decay: float
    """What counts are multiplied by at each step."""

    @classmethod
    def create(cls, buckets: int, *, groups: int, seed: int) -> BucketBandit:
        """A curriculum's bandit that has seen nothing; `groups` are drawn per step."""
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
        """The curriculum's buckets of `count` groups; the same for the same outcomes, seed and key.

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

    @staticmethod
    def _sample_weight(counts: BucketCounts, rng: random.Random) -> float:
        failures = counts.attempts - counts.successes
        success_rate = rng.betavariate(1 + counts.successes, 1 + max(0.0, failures))
        without_signal = counts.groups - counts.groups_with_signal
        signal_rate = rng.betavariate(1 + counts.groups_with_signal, 1 + max(0.0, without_signal))
        return band_weight(success_rate) * signal_rate + 1e-12


def band_weight(success_rate: float) -> float:
    """A bucket's curriculum weight: 1 in the band, falling with the squared distance to 0."""
    low, high = BAND
    return float(min(1.0, success_rate / low, (1 - success_rate) / (1 - high)) ** 2)
