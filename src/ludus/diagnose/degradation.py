"""Degradation: when a GRPO run has become worse than it was, by more than noise.

The detector reads one log entry at a time, so that training can go back to its best model. The
diagnosis of a finished run feeds it the same entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log, pi, sqrt
from statistics import fmean

from ludus.data.training_log import (
    LogEntry,
    entropy_key,
    metric,
    metric_values,
    read_buckets,
    step_number,
)
from ludus.diagnose.reward_delta import RewardScale
from ludus.diagnose.step_log import metric_mean

MIN_STEPS = 15
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
MIN_HELD_OUT_FALL = 0.1
"""Fraction of the reward scale by which the held-out reward must have fallen,"""
HELD_OUT_STANDARD_ERRORS = 3.0
"""and the fall in standard errors,"""
HELD_OUT_LUCK = 0.5
"""which becomes larger by this times the logarithm of the number of earlier evaluations: the best
of many is partly luck."""
MIN_MISMATCH = 0.5
"""Mean difference of a token's log-probability between decoder and trainer: they compute different
models, so that training does not follow what is sampled."""
NO_SIGNAL_STEPS = 10
"""Steps without any learning signal after which a run is given up,"""
SOLVED_REWARD = 0.95
"""unless the reward is this close to its top: then there is nothing left to learn."""
_SYMPTOMS = (
    ("entropy", 1.5), ("grad_norm", 3.0), ("length", 1.25), ("kl", 3.0), ("mismatch", 3.0),
)  # fmt: skip
"""Metrics whose rise, by at least this factor, is reported beside a fall of the reward."""
_SYMPTOM_NAMES = {"grad_norm": "gradient norm", "length": "length of episodes", "kl": "KL"}


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
        scale, now = (
            RewardScale.from_rewards(self._rewards),
            fmean(self._rewards[-NO_SIGNAL_STEPS:]),
        )
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
            means = _window_means(rewards, WINDOW_STEPS)
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
        if read_buckets(entry):
            # A curriculum moves on to harder tasks, on which rewards are lower.
            return self._mismatch() or self._collapse(rewards_comparable=False)
        return self._mismatch() or self._collapse() or self._reward_fall()

    def _reward_fall(self) -> str | None:
        rewards = metric_values(self._entries, "reward")
        if len(rewards) < MIN_STEPS:
            return None
        now, best, at = _compare_windows(rewards, WINDOW_STEPS)
        if not self._is_fall(rewards, best, now, WINDOW_STEPS):
            return None
        if self._tasks_became_harder(best, now):
            # Later steps are compared with these.
            self._entries = self._entries[-WINDOW_STEPS:]
            return None
        return self._describe(at, best, now, WINDOW_STEPS)

    def _tasks_became_harder(self, best: float, now: float) -> bool:
        """Whether held-out tasks, the same each time, were never played better than lately.

        That is, when the reward of training had already fallen by most of the difference.
        """
        held_out = metric_values(self._held_out, "eval_reward")
        if len(held_out) < 2 or held_out[-1] < max(held_out):
            return False
        step = step_number(self._held_out[-1])
        entries = [entry for entry in self._entries if step_number(entry) <= step]
        before = metric_values(entries, "reward")[-WINDOW_STEPS:]
        if len(before) < WINDOW_STEPS:
            return False
        return fmean(before) - now < (best - now) / 2

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
        reason = self._describe(at, best, now, COLLAPSE_STEPS)
        if lost_format:
            reason += f"; well-formed replies fell from {format_before:.0%} to {fmean(formats):.0%}"
        return reason

    def _held_out_fall(self) -> str | None:
        rewards = metric_values(self._held_out, "eval_reward")
        now, best = rewards[-1], max(rewards)
        scale = RewardScale.from_rewards([*rewards, *metric_values(self._entries, "reward")])
        fall = best - now
        if scale.normalize_delta(fall) < MIN_HELD_OUT_FALL:
            return None
        best_entry = self._held_out[rewards.index(best)]
        variances = []
        for entry in (best_entry, self._held_out[-1]):
            deviation = metric(entry, "eval_reward_std")
            if deviation is None:
                return None
            variances.append(deviation**2 / (metric(entry, "eval_episodes") or 1.0))
        min_errors = HELD_OUT_STANDARD_ERRORS + HELD_OUT_LUCK * log(max(1, self._evaluations - 1))
        if fall < min_errors * sqrt(sum(variances)):
            return None
        step = step_number(best_entry)
        reason = f"the held-out reward fell from {best:.3g} after step {step:,} to {now:.3g}"
        if (kl := metric(self._held_out[-1], "eval_kl")) is not None:
            reason += f", at a KL divergence of {kl:.2g} from the start"
        return reason

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
        # Two draws from a normal distribution differ by 2 sigma / sqrt(pi) on average.
        mean_difference = fmean(abs(after - before) for before, after in pairwise(rewards))
        deviation = mean_difference * sqrt(pi) / 2
        standard_error = deviation * sqrt(1 / WINDOW_STEPS + 1 / steps)
        return is_large and fall > 0 and fall >= MIN_FALL_STANDARD_ERRORS * standard_error

    def _describe(self, at: int, best: float, now: float, steps: int) -> str:
        """The fall from the window at an index, and what rose meanwhile."""
        window, recent = self._entries[at : at + WINDOW_STEPS], self._entries[-steps:]
        first, last = step_number(window[0]), step_number(window[-1])
        reason = f"reward fell from {best:.3g} (steps {first:,} to {last:,}) to {now:.3g}"
        for key, factor in _SYMPTOMS:
            key = entropy_key(self._entries) if key == "entropy" else key
            before, after = metric_mean(window, key), metric_mean(recent, key)
            if before and after and after >= factor * before:
                name = "entropy" if key == "sampled_nll" else _SYMPTOM_NAMES.get(key, key)
                reason += f", {name} rose from {before:.2g} to {after:.2g}"
        return reason


def _compare_windows(
    rewards: Sequence[float], size: int, recent: int | None = None
) -> tuple[float, float, int]:
    """The mean of the last `recent` rewards, the best mean of `size` before them, and its index."""
    recent = recent or size
    means = _window_means(rewards[: len(rewards) - recent], size)
    best = max(range(len(means)), key=means.__getitem__)
    return fmean(rewards[-recent:]), means[best], best


def _window_means(rewards: Sequence[float], size: int) -> list[float]:
    """The means of all windows of `size` consecutive rewards."""
    return [fmean(rewards[at : at + size]) for at in range(len(rewards) - size + 1)]
