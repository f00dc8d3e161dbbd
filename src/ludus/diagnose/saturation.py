"""Saturation: when a GRPO run has nothing left to learn.

The detector reads one log entry at a time, so that `early_stop` can act on it during training. The
diagnosis of a finished run feeds it the same entries.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import fmean, median

from ludus.data.training_log import LogEntry, entropy_key, metric, metric_values, step_number
from ludus.diagnose.reward_delta import RewardScale
from ludus.diagnose.step_log import StepLog, metric_mean

MIN_STEPS = 20
"""No run is stopped before this step."""
WINDOW_STEPS = 20
"""Logged steps over which the criteria must hold: stopping is final, and a few good steps may be
luck."""
ZERO_VARIANCE_SHARE = 0.9
"""Share of zero-variance groups: at most one group in ten still has a learning signal."""
NEARLY_ALL_ZERO_VARIANCE_SHARE = 0.97
"""At this share the learning signal is negligible, whatever the gradient norm says."""
HIGH_REWARD = 0.9
"""Fraction of the best reward. Below it, zero variance may mean that tasks are out of reach."""
MAX_DRIFT = 0.02
"""Fraction of the reward scale: the largest difference between the halves of the window, and
between the window and the best window before it."""
VANISHED_GRADIENT_RATIO = 0.25
"""Gradient norm relative to its peak."""
ENTROPY_RISE_RATIO = 1.2
"""Entropy relative to its minimum. Without a gradient only noise and the KL term change it."""
_SMOOTHING_STEPS = 5
"""Steps over which the initial reward, the gradient norm and the entropy are averaged."""


class SaturationDetector:
    """Decides after each log entry whether the run is saturated.

    After a resume, feed it the earlier entries first.
    """

    def __init__(self) -> None:
        self._window: deque[LogEntry] = deque(maxlen=WINDOW_STEPS)
        self._rewards: list[float] = []
        self._gradient_norms: deque[float] = deque(maxlen=_SMOOTHING_STEPS)
        self._entropies: deque[float] = deque(maxlen=_SMOOTHING_STEPS)
        self._entropy_key = "entropy"
        self._peak_gradient_norm, self._lowest_entropy = 0.0, float("inf")
        self._best_reward = float("-inf")
        self._first_entries: list[LogEntry] = []

    def update(self, entry: LogEntry) -> str | None:
        """Record an entry; return the reason to stop, or None to go on."""
        if metric(entry, "reward") is None or metric(entry, "zero_variance") is None:
            return None
        self._record(entry)
        if len(self._window) < WINDOW_STEPS or step_number(entry) < MIN_STEPS:
            return None
        reward = metric_mean(self._window, "reward") or 0.0
        zero_variance = metric_mean(self._window, "zero_variance") or 0.0
        self._best_reward = max(self._best_reward, reward)
        if zero_variance < ZERO_VARIANCE_SHARE or not self._is_high_and_flat(reward):
            return None
        symptoms = self._symptoms(zero_variance)
        if not symptoms:
            return None
        steps = step_number(self._window[-1]) - step_number(self._window[0]) + 1
        return (
            f"reward has been at {reward:.2f} for {steps} steps, {100 * zero_variance:.0f} % of "
            f"groups have zero reward variance, and {symptoms[0]}"
        )

    def _record(self, entry: LogEntry) -> None:
        self._window.append(entry)
        if len(self._first_entries) < _SMOOTHING_STEPS:
            self._first_entries.append(entry)
        self._rewards += metric_values([entry], "reward")
        # A step without a learning signal logs 0, or no gradient norm at all.
        self._gradient_norms.append(metric(entry, "grad_norm") or 0.0)
        if len(self._gradient_norms) == _SMOOTHING_STEPS:
            self._peak_gradient_norm = max(self._peak_gradient_norm, median(self._gradient_norms))
        # Switch to `sampled_nll` for good once it is logged, and forget the values of `entropy`:
        # the two cover different episodes and cannot be compared.
        if self._entropy_key == "entropy" and entropy_key([entry]) == "sampled_nll":
            self._entropy_key = "sampled_nll"
            self._entropies.clear()
            self._lowest_entropy = float("inf")
        self._entropies.extend(metric_values([entry], self._entropy_key))
        if len(self._entropies) == _SMOOTHING_STEPS:
            self._lowest_entropy = min(self._lowest_entropy, fmean(self._entropies))

    def _is_high_and_flat(self, reward: float) -> bool:
        """Whether the window's reward does not move, and is near the best possible one.

        Where the best possible reward is unknown, it must be far above the initial reward instead.
        """
        scale = RewardScale.from_rewards(self._rewards)
        rewards = metric_values(self._window, "reward")
        half = len(rewards) // 2
        drift = fmean(rewards[half:]) - fmean(rewards[:half])
        if abs(scale.normalize_delta(drift)) > MAX_DRIFT:
            return False
        if scale.normalize_delta(self._best_reward - reward) > MAX_DRIFT:
            return False
        if scale.is_unit and reward >= HIGH_REWARD:
            return True
        initial = metric_mean(self._first_entries, "reward") or 0.0
        return reward - initial > (metric_mean(self._first_entries, "reward_std") or 0.0)

    def _symptoms(self, zero_variance: float) -> list[str]:
        """Return further signs that learning has stopped; one is needed to stop the run."""
        gradient = fmean(metric(entry, "grad_norm") or 0.0 for entry in self._window)
        entropy = fmean(self._entropies) if self._entropies else 0.0
        symptoms = []
        if gradient <= VANISHED_GRADIENT_RATIO * self._peak_gradient_norm > 0:
            symptoms.append("the gradient has vanished")
        if entropy >= ENTROPY_RISE_RATIO * self._lowest_entropy > 0:
            symptoms.append(f"entropy has risen from {self._lowest_entropy:.2g} to {entropy:.2g}")
        if zero_variance >= NEARLY_ALL_ZERO_VARIANCE_SHARE:
            symptoms.append("hardly any group has a learning signal")
        return symptoms


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """The step at which `early_stop` would have ended the run, and why."""

    step: int
    reason: str


def find_early_stop(log: StepLog) -> EarlyStop | None:
    """Return where the saturation detector first reports a reason to stop."""
    detector = SaturationDetector()
    for entry in log.entries:
        if (reason := detector.update(entry)) is not None:
            return EarlyStop(step_number(entry), reason)
    return None
