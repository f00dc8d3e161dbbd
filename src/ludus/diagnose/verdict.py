"""Verdicts on a run: what was found, and what to change; and the evidence for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from ludus.diagnose.episode_stats import RunEpisodes, zero_variance_share
from ludus.diagnose.reward_delta import RewardChange, first_and_last_groups
from ludus.diagnose.saturation import EarlyStop
from ludus.diagnose.step_log import StepLog, metric_mean


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
class RunEvidence:
    """What the rules know of a run."""

    log: StepLog
    episodes: RunEpisodes
    reward_change: RewardChange
    environment_changes: tuple[RewardChange, ...]
    """The change of each environment's reward; empty unless several were trained on."""
    early_stop: EarlyStop | None

    def mean_at_start(self, key: str) -> float | None:
        """Mean of a metric over the first window."""
        return metric_mean(self.log.first_window, key)

    def mean_at_end(self, key: str) -> float | None:
        """Mean of a metric over the last window."""
        return metric_mean(self.log.last_window, key)

    def overall_mean(self, key: str) -> float | None:
        return metric_mean(self.log.entries, key)

    def zero_variance_share(self, environment: str) -> float | None:
        """Share of one environment's zero-variance groups, over the first and the last window."""
        first, last = first_and_last_groups(self.log, self.episodes, environment)
        return zero_variance_share([*first, *last])
