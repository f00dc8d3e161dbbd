"""What training changed: the reward at the beginning and at the end, and how sure that is.

Pure. The interval is a bootstrap over tasks: the members of a group play the same one, so they
are no independent evidence.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ludus.data.bootstrap import MIN_SAMPLES, tail_fraction
from ludus.diagnose.episode_stats import RunEpisodes, ScoredGroup
from ludus.diagnose.log_stats import (
    LogEntry,
    StepLog,
    metric,
    metric_mean,
    metric_values,
    step_number,
)

_MAX_BOOTSTRAP_DRAWS = 1_000_000
"""Tasks that a bootstrap may draw in all: about a second's work."""
_MAX_ROUNDS, _MIN_ROUNDS = 1_000, 200
"""Rounds."""


class Interval(NamedTuple):
    """Between them lies the true value, 95 times of 100."""

    low: float
    high: float


class _TaskSum(NamedTuple):
    total: float
    n: int


@dataclass(frozen=True, slots=True)
class RewardScale:
    """From the worst reward to the best."""

    low: float
    high: float

    @classmethod
    def from_rewards(cls, rewards: Iterable[float]) -> RewardScale:
        """0 to 1 where all rewards lie there; else what was seen, because no more is known."""
        found = list(rewards)
        low, high = min(found, default=0.0), max(found, default=1.0)
        return cls(0.0, 1.0) if low >= 0.0 and high <= 1.0 else cls(low, high)

    @property
    def is_unit(self) -> bool:
        """Whether the best that there is is known, and not only the best that was seen."""
        return (self.low, self.high) == (0.0, 1.0)

    @property
    def is_constant(self) -> bool:
        """Whether all rewards were the same, which may be the best or the worst that there is."""
        return self.low == self.high

    def normalize(self, reward: float) -> float:
        """Where a reward lies: 0 at the worst, 1 at the best."""
        return self.normalize_delta(reward - self.low)

    def normalize_delta(self, difference: float) -> float:
        """A difference of rewards, as a part of the whole scale."""
        width = self.high - self.low
        return difference / width if width else 0.0


@dataclass(frozen=True, slots=True)
class RewardChange:
    """A reward, before and after."""

    name: str
    initial: float
    final: float
    scale: RewardScale
    interval: Interval | None = None
    """Of the delta; None where the episodes are not there, or too few."""

    @property
    def delta(self) -> float:
        return self.final - self.initial

    @property
    def normalized_initial(self) -> float:
        """Where it began: 0 at the worst, 1 at the best."""
        return self.scale.normalize(self.initial)

    @property
    def normalized_delta(self) -> float:
        """The delta, as a part of the scale."""
        return self.scale.normalize_delta(self.delta)


def reward_change(
    log: StepLog, episodes: RunEpisodes, environment: str | None = None
) -> RewardChange | None:
    """How the whole reward changed, or what one environment gave. None: not played at an end.

    From the episodes where they are there. Only the log knows what stands in no episode, but it
    cannot tell how sure it is.
    """
    name = environment or "reward"
    one, other = (
        _sum_by_task(groups, environment)
        for groups in first_and_last_groups(log, episodes, environment)
    )
    if one and other:
        scale = RewardScale.from_rewards(
            reward for group in episodes.groups for reward in group.rewards_from(environment)
        )
        return RewardChange(name, _mean(one), _mean(other), scale, bootstrap_difference(one, other))
    return logged_component_change(log, environment) if environment else logged_reward_change(log)


def first_and_last_groups(
    log: StepLog, episodes: RunEpisodes, environment: str | None = None
) -> tuple[list[ScoredGroup], list[ScoredGroup]]:
    """The groups of the run's beginning and of its end."""
    opening = step_number(log.first_window[-1])
    closing = step_number(log.entries[-log.window_size - 1]) + 1 if len(log.entries) > 1 else 0
    return (
        episodes.groups_between(1, opening, environment),
        episodes.groups_between(closing, log.steps, environment),
    )


def logged_reward_change(log: StepLog) -> RewardChange | None:
    """What the log alone tells of the whole reward."""
    return _change_from_log(log, "reward", "reward", "reward_std")


def logged_component_change(log: StepLog, name: str) -> RewardChange | None:
    """What it tells of an environment, or of a reward function."""
    return _change_from_log(log, name, f"rewards/{name}/mean", f"rewards/{name}/std")


def _change_from_log(log: StepLog, name: str, key: str, std_key: str) -> RewardChange | None:
    initial, final = metric_mean(log.first_window, key), metric_mean(log.last_window, key)
    if initial is None or final is None:
        return None
    scale = RewardScale.from_rewards(metric_values(log.entries, key))
    return RewardChange(
        name, initial, final, scale if scale.is_unit else _scale_from_std(log, key, std_key)
    )


def _scale_from_std(log: StepLog, key: str, std_key: str) -> RewardScale:
    """From means and deviations: rewards lie further apart than the means of steps do."""
    steps = [(line, metric(line, std_key) or 0.0) for line in log.entries]
    return RewardScale.from_rewards(
        value + side * wide
        for line, wide in steps
        if (value := metric(line, key)) is not None
        for side in (-1, 1)
    )


def component_changes(log: StepLog, episodes: RunEpisodes) -> tuple[RewardChange, ...]:
    """What the environments gave, and the reward functions; nothing where one gave all of it."""
    environments = episodes.environments
    others = [name for name in _reward_names(log.entries) if name not in environments]
    if len(environments) + len(others) < 2:
        return ()
    found = [reward_change(log, episodes, environment) for environment in environments]
    found += [logged_component_change(log, name) for name in others]
    return tuple(change for change in found if change is not None)


def _reward_names(entries: Iterable[LogEntry]) -> list[str]:
    keys = {key for line in entries for key in line if key.startswith("rewards/")}
    return sorted(
        key.removeprefix("rewards/").removesuffix("/mean") for key in keys if key.endswith("/mean")
    )


def bootstrap_difference(
    before: Sequence[_TaskSum], after: Sequence[_TaskSum], *, seed: int = 0
) -> Interval | None:
    """The 95 % interval of one mean less another; the same sums give the same.

    None where either end has too few tasks, or where no task at either end differs from the
    others: drawn again they would give the same difference every time, which is no certainty.
    """
    fewest = min(len(before), len(after))
    if fewest < MIN_SAMPLES or not (_means_differ(before) or _means_differ(after)):
        return None
    chance = random.Random(seed)
    rounds = max(_MIN_ROUNDS, min(_MAX_ROUNDS, _MAX_BOOTSTRAP_DRAWS // (len(before) + len(after))))
    drawn = sorted(
        _resampled_mean(after, chance) - _resampled_mean(before, chance) for _ in range(rounds)
    )
    found, cut = _mean(after) - _mean(before), round(tail_fraction(fewest) * rounds)
    return Interval(min(found, drawn[cut]), max(found, drawn[rounds - 1 - cut]))


def _means_differ(sums: Sequence[_TaskSum]) -> bool:
    return len({one.total / one.n for one in sums}) > 1


def _resampled_mean(sums: Sequence[_TaskSum], rng: random.Random) -> float:
    return _mean(rng.choices(sums, k=len(sums)))


def _mean(sums: Sequence[_TaskSum]) -> float:
    return sum(one.total for one in sums) / sum(one.n for one in sums)


def _sum_by_task(groups: Iterable[ScoredGroup], environment: str | None) -> list[_TaskSum]:
    """One for each task, however often it came up: it is as hard every time."""
    rewards: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for group in groups:
        rewards[group.environment, group.task].extend(group.rewards_from(environment))
    return [_TaskSum(sum(found), len(found)) for found in rewards.values() if found]
