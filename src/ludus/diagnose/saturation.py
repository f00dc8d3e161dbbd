"""When a run has nothing left to learn: the one place that knows.

Told of each step as it is logged, so that `--early-stop` can act on it; the verdict of a run that
is over asks the same judge.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, median

from ludus.diagnose.log_stats import (
    LogEntry,
    entropy_key,
    metric,
    metric_mean,
    metric_values,
    step_number,
)
from ludus.diagnose.reward_delta import RewardScale

MIN_STEPS = 20
"""No step before this one ends a run, however good it looks."""
WINDOW_STEPS = 20
"""Logged steps that must agree: a few good ones in a row may be luck, and stopping is final."""
ZERO_VARIANCE_SHARE = 0.9
"""The share of groups with equal rewards: of ten groups, at most one still teaches something."""
NEARLY_ALL_ZERO_VARIANCE_SHARE = 0.97
"""At this share, what is left to learn from is next to nothing whatever the gradient says."""
HIGH_REWARD = 0.9
"""Of the best reward. Equal groups below it may be tasks that are out of reach by now."""
MAX_DRIFT = 0.02
"""Of the scale: what the halves of a window may differ by, and how far below its best it may be."""
VANISHED_GRADIENT_RATIO = 0.25
"""The gradient's norm, beside the highest that it held for some steps."""
ENTROPY_RISE_RATIO = 1.2
"""Entropy beside its lowest. With no gradient only noise and the KL term are left to move it."""
_SMOOTHING_STEPS = 5
"""Steps over which a beginning, a gradient or an entropy is taken: one may be an accident."""


class SaturationDetector:
    """Judges line by line. A run that goes on shows it the lines from before first."""

    def __init__(self) -> None:
        self._window: deque[LogEntry] = deque(maxlen=WINDOW_STEPS)
        self._rewards: list[float] = []
        self._gradient_norms: deque[float] = deque(maxlen=_SMOOTHING_STEPS)
        self._entropies: deque[float] = deque(maxlen=_SMOOTHING_STEPS)
        self._entropy_key = "entropy"
        """Which figure they are: once a line has the better one, that."""
        self._peak_gradient_norm, self._lowest_entropy = 0.0, float("inf")
        self._best_reward = float("-inf")
        self._first_entries: list[LogEntry] = []

    def update(self, entry: LogEntry) -> str | None:
        """None: go on. Else why to stop, as one line."""
        if metric(entry, "reward") is None or metric(entry, "equal") is None:
            return None
        self._record(entry)
        if len(self._window) < WINDOW_STEPS or step_number(entry) < MIN_STEPS:
            return None
        reward = metric_mean(self._window, "reward") or 0.0
        self._best_reward = max(self._best_reward, reward)
        return self._reason(reward) if self._is_saturated(reward) else None

    def _record(self, entry: LogEntry) -> None:
        self._window.append(entry)
        if len(self._first_entries) < _SMOOTHING_STEPS:
            self._first_entries.append(entry)
        self._rewards += metric_values([entry], "reward")
        self._gradient_norms.append(_gradient_norm(entry))
        self._record_entropy(entry)
        if len(self._gradient_norms) == _SMOOTHING_STEPS:
            self._peak_gradient_norm = max(self._peak_gradient_norm, median(self._gradient_norms))

    def _record_entropy(self, entry: LogEntry) -> None:
        """One of the two figures, and never one beside the other: they cannot be compared."""
        if self._entropy_key == "entropy" and (found := entropy_key([entry])) != self._entropy_key:
            self._entropy_key = found
            self._entropies.clear()
            self._lowest_entropy = float("inf")
        self._entropies.extend(metric_values([entry], self._entropy_key))
        if len(self._entropies) == _SMOOTHING_STEPS:
            self._lowest_entropy = min(self._lowest_entropy, fmean(self._entropies))

    def _is_saturated(self, reward: float) -> bool:
        scale = RewardScale.from_rewards(self._rewards)
        return (
            self._zero_variance_share >= ZERO_VARIANCE_SHARE
            and self._is_flat(reward, scale)
            and self._is_high(reward, scale)
            and bool(self._symptoms())
        )

    @property
    def _zero_variance_share(self) -> float:
        return metric_mean(self._window, "equal") or 0.0

    def _is_flat(self, reward: float, scale: RewardScale) -> bool:
        rewards = metric_values(self._window, "reward")
        half = len(rewards) // 2
        drift = fmean(rewards[half:]) - fmean(rewards[:half])
        return (
            max(
                abs(scale.normalize_delta(drift)), scale.normalize_delta(self._best_reward - reward)
            )
            <= MAX_DRIFT
        )

    def _is_high(self, reward: float, scale: RewardScale) -> bool:
        """Near the best that there is; where that is not known, far above where it began."""
        if scale.is_unit and reward >= HIGH_REWARD:
            return True
        start, spread = (
            metric_mean(self._first_entries, "reward"),
            metric_mean(self._first_entries, "reward_std"),
        )
        return reward - (start or 0.0) > (spread or 0.0)

    def _symptoms(self) -> list[str]:
        """What else tells that nothing is learned any more."""
        gradient = fmean(_gradient_norm(line) for line in self._window)
        entropy = fmean(self._entropies) if self._entropies else 0.0
        gone = gradient <= VANISHED_GRADIENT_RATIO * self._peak_gradient_norm > 0
        risen = entropy >= ENTROPY_RISE_RATIO * self._lowest_entropy > 0
        return [
            *(["the gradient is gone"] if gone else []),
            *(
                [f"entropy has risen from {self._lowest_entropy:.2g} to {entropy:.2g}"]
                if risen
                else []
            ),
            *(
                ["hardly a group is left to learn from"]
                if self._zero_variance_share >= NEARLY_ALL_ZERO_VARIANCE_SHARE
                else []
            ),
        ]

    def _reason(self, reward: float) -> str:
        steps = step_number(self._window[-1]) - step_number(self._window[0]) + 1
        return (
            f"reward has been at {reward:.2f} for {steps} steps, {100 * self._zero_variance_share:.0f} % of "
            f"groups are equal, and {self._symptoms()[0]}"
        )


def _gradient_norm(entry: LogEntry) -> float:
    """A step whose episodes teach nothing has one of 0, or logs none."""
    return metric(entry, "grad_norm") or 0.0
