"""What became of a GRPO run, and what to change: from its log and its episodes."""

from __future__ import annotations

from ludus.train.diagnosis.change import Interval, RewardChange, RewardScale
from ludus.train.diagnosis.diagnosis import Diagnosis, diagnose
from ludus.train.diagnosis.folder import RunData, read_run
from ludus.train.diagnosis.played import RunEpisodes, read_episodes
from ludus.train.diagnosis.saturation import SaturationDetector
from ludus.train.diagnosis.verdict import Verdict
from ludus.train.diagnosis.words import format_diagnosis

__all__ = [
    "Diagnosis",
    "Interval",
    "RewardChange",
    "RewardScale",
    "RunData",
    "RunEpisodes",
    "SaturationDetector",
    "Verdict",
    "diagnose",
    "format_diagnosis",
    "read_episodes",
    "read_run",
]
