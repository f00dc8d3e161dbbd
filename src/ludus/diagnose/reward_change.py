"""How training changed the reward: its mean at the start and at the end, with a 95 % interval.

Pure functions. The interval counts tasks and not episodes: the members of a group play the same
task, so they are not independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from ludus.data.interval_estimates import Interval, TaskRewards, difference_interval
from ludus.data.training_log import metric, metric_values, step_number
from ludus.diagnose.episode_stats import EpisodeGroupStats, RunEpisodes
from ludus.diagnose.step_log import RewardScale, StepLog, metric_mean


def format_number(value: float, *, digits: int = 3, sign: str = "") -> str:
    """Format a number with all digits before the point: 1,235, 0.0123."""
    if abs(value) < 10**digits - 0.5:
        return f"{value:{sign}.{digits}g}"
    return f"{value:{sign},.0f}"


def format_share(share: float) -> str:
    """Format a share as percent: 0.954 -> 95 %, 0.996 -> 99.6 %."""
    percent = 100 * share
    rounded = f"{percent:.0f}" if 1 <= percent <= 99 or percent in (0, 100) else f"{percent:.1f}"
    return f"{rounded} %"


MIN_DELTA = 0.03
"""Fraction of the scale. A smaller delta is not progress, however certain it is."""
MIN_UNCERTAIN_DELTA = 0.1
"""Fraction of the scale. A smaller delta does not count while its interval contains 0."""


@dataclass(frozen=True, slots=True)
class RewardChange:
    """The mean of a reward in the first and in the last window of a run."""

    name: str
    """`reward`, an environment, or a reward function."""
    initial: float
    final: float
    scale: RewardScale
    interval: Interval | None = None
    """Interval of `delta`; None without episodes, or with too few."""

    @property
    def delta(self) -> float:
        return self.final - self.initial

    @property
    def normalized_initial(self) -> float:
        return self.scale.normalize(self.initial)

    @property
    def normalized_delta(self) -> float:
        return self.scale.normalize_delta(self.delta)

    @property
    def is_unchanged(self) -> bool:
        """Whether the delta is too small, or too small for how uncertain it is."""
        certain = self.interval is not None and not self.interval.low <= 0 <= self.interval.high
        return abs(self.normalized_delta) < (MIN_DELTA if certain else MIN_UNCERTAIN_DELTA)


def reward_change(log: StepLog, episodes: RunEpisodes) -> RewardChange | None:
    """Return the change of the total reward; None if it was not measured.

    The episodes are used if both windows have some, because only they allow an interval.
    """
    windows = []
    for groups in first_and_last_groups(log, episodes):
        rewards = TaskRewards()
        for group in groups:
            for reward in group.rewards:
                rewards.add(group.task, reward)
        windows.append(rewards.means)
    before, after = windows
    if not (before and after):
        return _logged_change(log, "reward", "reward", "reward_std")
    scale = RewardScale.from_rewards(reward for each in episodes.groups for reward in each.rewards)
    interval = difference_interval(before, after)
    return RewardChange("reward", fmean(before), fmean(after), scale, interval)


def first_and_last_groups(
    log: StepLog, episodes: RunEpisodes, environment: str | None = None
) -> tuple[list[EpisodeGroupStats], list[EpisodeGroupStats]]:
    """The groups of the first and of the last window, between which the reward changed."""
    first_window_end = step_number(log.first_window[-1])
    last_window_start = (
        step_number(log.entries[-log.window_size - 1]) + 1 if len(log.entries) > 1 else 0
    )
    return (
        episodes.groups_between(1, first_window_end, environment),
        episodes.groups_between(last_window_start, log.steps, environment),
    )


def component_changes(log: StepLog) -> tuple[RewardChange, ...]:
    """Return the change for each environment and reward function; nothing if there is only one."""
    keys = {key for entry in log.entries for key in entry if key.endswith("/mean")}
    names = sorted(
        key.removeprefix("rewards/").removesuffix("/mean")
        for key in keys
        if key.startswith("rewards/")
    )
    changes = [
        _logged_change(log, name, f"rewards/{name}/mean", f"rewards/{name}/std") for name in names
    ]
    return tuple(each for each in changes if each is not None) if len(changes) > 1 else ()


def _logged_change(log: StepLog, name: str, key: str, std_key: str) -> RewardChange | None:
    """Return the change of the total reward or of one component, from the log alone."""
    initial, final = metric_mean(log.first_window, key), metric_mean(log.last_window, key)
    if initial is None or final is None:
        return None
    scale = RewardScale.from_rewards(metric_values(log.entries, key))
    if not scale.is_unit:
        # Single rewards lie further apart than the means of steps: widen by one deviation.
        scale = RewardScale.from_rewards(
            mean + sign * (metric(entry, std_key) or 0.0)
            for entry in log.entries
            if (mean := metric(entry, key)) is not None
            for sign in (-1, 1)
        )
    return RewardChange(name, initial, final, scale)


def format_reward(value: float, scale: RewardScale, sign: str = "") -> str:
    """Format a reward: with three decimals if rewards lie between 0 and 1."""
    return f"{value:{sign}.3f}" if scale.is_unit else format_number(value, sign=sign)


def format_change_interval(change: RewardChange) -> str:
    """Format the interval of a reward change: +0.081 to +0.165; empty without an interval."""
    ends = (format_reward(value, change.scale, "+") for value in change.interval or ())
    return " to ".join(ends)


def format_reward_change(change: RewardChange) -> str:
    """Format a reward change: 0.234 -> 0.567, +0.333."""
    initial = format_reward(change.initial, change.scale)
    final = format_reward(change.final, change.scale)
    return f"{initial} -> {final}, {format_reward(change.delta, change.scale, '+')}"


def format_change_with_interval(change: RewardChange) -> str:
    """Format a reward change: 0.234 -> 0.567, +0.333 (95 % interval +0.281 to +0.380)."""
    interval = format_change_interval(change)
    return format_reward_change(change) + (f" (95 % interval {interval})" if interval else "")
