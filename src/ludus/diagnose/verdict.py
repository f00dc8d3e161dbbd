"""Verdicts, and the evidence that the rules derive them from."""

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
    """A finding, with the numbers behind it, and what to change."""

    name: str
    kind: Literal["problem", "note", "good"]
    finding: str
    advice: str


problem = partial(Verdict, kind="problem")
note = partial(Verdict, kind="note")
good = partial(Verdict, kind="good")


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """The step at which `early_stop` would have ended the run, and why."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """The input of the rules."""

    log: StepLog
    episodes: RunEpisodes
    reward_change: RewardChange
    environment_changes: tuple[RewardChange, ...]
    """The change of each environment's reward; empty unless several were trained on."""
    early_stop: EarlyStop | None

    def mean_at_start(self, key: str) -> float | None:
        return metric_mean(self.log.first_window, key)

    def mean_at_end(self, key: str) -> float | None:
        return metric_mean(self.log.last_window, key)

    def overall_mean(self, key: str) -> float | None:
        return metric_mean(self.log.entries, key)

    def zero_variance_share(self, environment: str) -> float | None:
        """Share of one environment's zero-variance groups, over the first and the last window."""
        first, last = first_and_last_groups(self.log, self.episodes, environment)
        return zero_variance_share([*first, *last])


def find_early_stop(log: StepLog) -> EarlyStop | None:
    """Return where the saturation detector first reports a reason to stop."""
    detector = SaturationDetector()
    for entry in log.entries:
        if (reason := detector.update(entry)) is not None:
            return EarlyStop(step_number(entry), reason)
    return None
