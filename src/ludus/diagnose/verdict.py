"""A verdict on a run, and the case that the rules judge. What the rules are is not known here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from ludus.diagnose.episode_stats import RunEpisodes, zero_variance_share
from ludus.diagnose.log_stats import StepLog, metric_mean, step_number
from ludus.diagnose.reward_delta import RewardChange, first_and_last_groups
from ludus.diagnose.saturation import SaturationDetector


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is so, the numbers behind it, and what to change."""

    name: str
    kind: Literal["problem", "note", "good"]
    finding: str
    advice: str


problem = partial(Verdict, kind="problem")
note = partial(Verdict, kind="note")
good = partial(Verdict, kind="good")


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Where `--early-stop` would have ended the run, and why."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """What a run is judged by."""

    log: StepLog
    episodes: RunEpisodes
    reward_change: RewardChange
    """Of the whole reward."""
    environment_changes: tuple[RewardChange, ...]
    """Of each environment, in a mix."""
    early_stop: EarlyStop | None

    def mean_at_start(self, key: str) -> float | None:
        """A figure's mean over the run's beginning."""
        return metric_mean(self.log.first_window, key)

    def mean_at_end(self, key: str) -> float | None:
        return metric_mean(self.log.last_window, key)

    def overall_mean(self, key: str) -> float | None:
        return metric_mean(self.log.entries, key)

    def zero_variance_share(self, environment: str) -> float | None:
        """The share of equal groups in one environment of a mix, at both ends of the run."""
        first, last = first_and_last_groups(self.log, self.episodes, environment)
        return zero_variance_share([*first, *last])


def find_early_stop(log: StepLog) -> EarlyStop | None:
    judge = SaturationDetector()
    for line in log.entries:
        if (reason := judge.update(line)) is not None:
            return EarlyStop(step_number(line), reason)
    return None
