"""Detectors of GRPO runs that are saturated, have no learning signal, or have become worse.

Each reads one log entry at a time, so that training can stop or go back to its best model. The
diagnosis of a finished run feeds them the same entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import sqrt
from statistics import fmean, median

from ludus.data.paired_rewards import find_fall
from ludus.data.training_log import (
    LogEntry,
    metric,
    metric_values,
    read_bucket_metrics,
    step_number,
)
from ludus.diagnose.step_log import RewardScale, estimate_noise, metric_mean, window_means

SATURATION_STEPS = 20
"""Logged steps over which the criteria must hold, and the first step at which a run is stopped:
stopping is final, and a few good steps may be luck."""
ZERO_VARIANCE_SHARE = 0.9
"""Share of zero-variance groups: at most one group in ten still has a learning signal."""
NEARLY_ALL_ZERO_VARIANCE_SHARE = 0.97
"""At this share the learning signal is negligible at any gradient norm."""
HIGH_REWARD = 0.9
"""Fraction of the best reward. Below it, zero variance may mean that tasks are out of reach."""
MAX_DRIFT = 0.02
"""Fraction of the reward scale: the largest difference between the halves of the window, and
between the window and the best window before it."""
VANISHED_GRADIENT_RATIO = 0.25
"""Gradient norm relative to its peak."""
_SMOOTHING_STEPS = 5
"""Steps over which the initial reward and the gradient norm are averaged."""


class SaturationDetector:
    """Decides after each log entry whether the run is saturated.

    After a resume, feed it the earlier entries first.
    """

    def __init__(self) -> None:
        self._window: deque[LogEntry] = deque(maxlen=SATURATION_STEPS)
        self._rewards: list[float] = []
        self._gradient_norms: deque[float] = deque(maxlen=_SMOOTHING_STEPS)
        self._peak_gradient_norm = 0.0
        self._best_reward = float("-inf")
        self._first_entries: list[LogEntry] = []

    def update(self, entry: LogEntry) -> str | None:
        """Record an entry; return the reason to stop, or None to go on."""
        if metric(entry, "reward") is None or metric(entry, "zero_variance") is None:
            return None
        self._window.append(entry)
        if len(self._first_entries) < _SMOOTHING_STEPS:
            self._first_entries.append(entry)
        self._rewards += metric_values([entry], "reward")
        # A step without a learning signal logs 0, or no gradient norm at all.
        self._gradient_norms.append(metric(entry, "grad_norm") or 0.0)
        if len(self._gradient_norms) == _SMOOTHING_STEPS:
            self._peak_gradient_norm = max(self._peak_gradient_norm, median(self._gradient_norms))
        if len(self._window) < SATURATION_STEPS or step_number(entry) < SATURATION_STEPS:
            return None
        reward = metric_mean(self._window, "reward") or 0.0
        zero_variance = metric_mean(self._window, "zero_variance") or 0.0
        self._best_reward = max(self._best_reward, reward)
        if zero_variance < ZERO_VARIANCE_SHARE or not self._is_high_and_flat(reward):
            return None
        gradient = fmean(metric(entry, "grad_norm") or 0.0 for entry in self._window)
        if gradient <= VANISHED_GRADIENT_RATIO * self._peak_gradient_norm > 0:
            symptom = "the gradient has vanished"
        elif zero_variance >= NEARLY_ALL_ZERO_VARIANCE_SHARE:
            symptom = "hardly any group has a learning signal"
        else:
            return None
        steps = step_number(self._window[-1]) - step_number(self._window[0]) + 1
        return (
            f"reward has been at {reward:.2f} for {steps} steps, {100 * zero_variance:.0f} % of "
            f"groups have zero reward variance, and {symptom}"
        )

    def _is_high_and_flat(self, reward: float) -> bool:
        """Whether the window's reward does not move, and is near the best possible one.

        If the best possible reward is unknown, it must be far above the initial reward instead.
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


MIN_NOISE_STEPS = 15
"""Logged steps from which noise is estimated."""
WINDOW_STEPS = 5
"""Logged steps whose mean is compared with the best such mean before."""
MIN_FALL = 0.05
"""Fraction of the reward scale by which the reward must have fallen,"""
MIN_RELATIVE_FALL = 0.25
"""or fraction of the best window's reward: rewards may be small on their scale,"""
MIN_FALL_STANDARD_ERRORS = 5.0
"""and the fall in standard errors: the best of many windows is partly luck."""
COLLAPSE_STEPS = 3
"""Steps after which a collapse is certain: replies lose their format, or the reward vanishes."""
MIN_FORMAT_FALL = 0.25
VANISHED_REWARD = 0.2
"""Fraction of the best window's reward."""
MIN_MISMATCH = 0.5
"""Mean difference of a token's log-probability between decoder and trainer: if it is large, they
compute different models, and training is off-policy."""
NO_SIGNAL_STEPS = 10
"""Steps without any learning signal after which a run is given up,"""
SOLVED_REWARD = 0.95
"""unless the reward is this close to its top: then there is nothing left to learn."""


class SignalDetector:
    """Says after each log entry whether a run has had nothing to learn from for many steps."""

    def __init__(self) -> None:
        self._rewards: list[float] = []
        self._silent_steps = 0

    def update(self, entry: LogEntry) -> str | None:
        """Record an entry; return what is wrong, or None."""
        reward, trained = metric(entry, "reward"), metric(entry, "trained")
        if reward is None or trained is None:
            return None
        self._rewards.append(reward)
        self._silent_steps = 0 if trained else self._silent_steps + 1
        if self._silent_steps < NO_SIGNAL_STEPS:
            return None
        scale = RewardScale.from_rewards(self._rewards)
        now = fmean(self._rewards[-NO_SIGNAL_STEPS:])
        if scale.normalize(now) >= SOLVED_REWARD:
            return None
        return (
            f"in {self._silent_steps} steps no group had episodes with different rewards, at a "
            f"mean reward of {now:.3g}"
        )


class DegradationDetector:
    """Says after each log entry whether the run has degraded, and why.

    After a resume, feed it the earlier entries first.
    """

    def __init__(self) -> None:
        self._entries: list[LogEntry] = []
        self._held_out: list[LogEntry] = []
        self._evaluations = 0

    def restart(self) -> None:
        """Forget all but the best entries, because the run goes on from its best model."""
        rewards = metric_values(self._entries, "reward")
        if len(rewards) >= WINDOW_STEPS:
            means = window_means(rewards, WINDOW_STEPS)
            at = means.index(max(means))
            self._entries = self._entries[at : at + WINDOW_STEPS]
        if self._held_out:
            rewards = metric_values(self._held_out, "eval_reward")
            self._held_out = [self._held_out[rewards.index(max(rewards))]]

    def update(self, entry: LogEntry) -> str | None:
        """Record an entry; return what is wrong, or None."""
        if metric(entry, "rollback_to") is not None:
            self.restart()
        if metric(entry, "eval_reward") is not None:
            self._held_out.append(entry)
            self._evaluations += 1
            return self._held_out_fall()
        if metric(entry, "reward") is None:
            return None
        self._entries.append(entry)
        if read_bucket_metrics(entry):
            # A curriculum moves on to harder tasks, on which rewards are lower.
            return self._mismatch() or self._collapse(rewards_comparable=False)
        return self._mismatch() or self._collapse() or self._reward_fall()

    def _reward_fall(self) -> str | None:
        rewards = metric_values(self._entries, "reward")
        if len(rewards) < MIN_NOISE_STEPS:
            return None
        now, best, at = _compare_windows(rewards, WINDOW_STEPS)
        if not self._is_fall(rewards, best, now, WINDOW_STEPS):
            return None
        held_out = metric_values(self._held_out, "eval_reward")
        if len(held_out) > 1 and held_out[-1] == max(held_out):
            # Held-out tasks, the same each time, were never played better than lately. If the
            # reward of training had already fallen by most of the difference, its tasks are harder.
            step = step_number(self._held_out[-1])
            entries = [entry for entry in self._entries if step_number(entry) <= step]
            before = metric_values(entries, "reward")[-WINDOW_STEPS:]
            if len(before) == WINDOW_STEPS and fmean(before) - now < (best - now) / 2:
                # Later steps are compared with these.
                self._entries = self._entries[-WINDOW_STEPS:]
                return None
        return _describe_fall(self._entries[at : at + WINDOW_STEPS], best, now)

    def _collapse(self, *, rewards_comparable: bool = True) -> str | None:
        """A fall within few steps, which is too large to wait for a whole window."""
        rewards = metric_values(self._entries, "reward")
        if len(rewards) < WINDOW_STEPS + COLLAPSE_STEPS:
            return None
        now, best, at = _compare_windows(rewards, WINDOW_STEPS, COLLAPSE_STEPS)
        window = self._entries[at : at + WINDOW_STEPS]
        format_before = metric_mean(window, "format")
        formats = metric_values(self._entries[-COLLAPSE_STEPS:], "format")
        lost_format = (
            format_before is not None
            and len(formats) == COLLAPSE_STEPS
            and max(formats) <= format_before - MIN_FORMAT_FALL
        )
        low = RewardScale.from_rewards(rewards).low
        vanished = rewards_comparable and now - low <= VANISHED_REWARD * (best - low)
        if not (vanished and self._is_fall(rewards, best, now, COLLAPSE_STEPS)) and not (
            lost_format and now < best
        ):
            return None
        reason = _describe_fall(window, best, now)
        if lost_format:
            reason += f"; well-formed replies fell from {format_before:.0%} to {fmean(formats):.0%}"
        return reason

    def _held_out_fall(self) -> str | None:
        evaluations = [entry.get("eval_rewards") or () for entry in self._held_out]
        found = find_fall(evaluations, self._evaluations)
        if found is None:
            return None
        window, best, now = found
        rewards = [*self._held_out, *self._entries]
        means = [
            value for name in ("eval_reward", "reward") for value in metric_values(rewards, name)
        ]
        if RewardScale.from_rewards(means).normalize_delta(best - now) < MIN_FALL:
            return None
        first, last = (step_number(self._held_out[at]) for at in (window[0], window[-1]))
        steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        return f"the held-out reward fell from {best:.3g} after {steps} to {now:.3g}"

    def _mismatch(self) -> str | None:
        recent = metric_values(self._entries[-COLLAPSE_STEPS:], "mismatch")
        if len(recent) < COLLAPSE_STEPS or min(recent) < MIN_MISMATCH:
            return None
        return (
            "decoder and trainer disagree: log-probabilities of sampled tokens differ by "
            f"{fmean(recent):.2g} on average"
        )

    def _is_fall(self, rewards: Sequence[float], best: float, now: float, steps: int) -> bool:
        scale, fall = RewardScale.from_rewards(rewards), best - now
        relative_fall = MIN_RELATIVE_FALL * (best - scale.low)
        is_large = scale.normalize_delta(fall) >= MIN_FALL or fall >= relative_fall
        standard_error = estimate_noise(rewards) * sqrt(1 / WINDOW_STEPS + 1 / steps)
        return is_large and fall > 0 and fall >= MIN_FALL_STANDARD_ERRORS * standard_error


def _compare_windows(
    rewards: Sequence[float], size: int, recent: int | None = None
) -> tuple[float, float, int]:
    """The mean of the last `recent` rewards, the best mean of `size` before them, and its index."""
    recent = recent or size
    means = window_means(rewards[: len(rewards) - recent], size)
    best = max(means)
    return fmean(rewards[-recent:]), best, means.index(best)


def _describe_fall(window: Sequence[LogEntry], best: float, now: float) -> str:
    first, last = step_number(window[0]), step_number(window[-1])
    return f"reward fell from {best:.3g} (steps {first:,} to {last:,}) to {now:.3g}"
