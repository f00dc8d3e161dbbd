"""Diagnosis of GRPO runs from their log and episodes: did it learn, and what to change."""

from __future__ import annotations

from ludus.diagnose.diagnosis import (
    Diagnosis,
    RunData,
    diagnose,
    format_diagnosis,
    format_verdict,
    read_run,
)
from ludus.diagnose.episode_stats import RunEpisodes, read_episode_stats
from ludus.diagnose.reward_delta import RewardChange, RewardScale
from ludus.diagnose.saturation import SaturationDetector
from ludus.diagnose.verdict import Verdict

__all__ = [
    "Diagnosis",
    "RewardChange",
    "RewardScale",
    "RunData",
    "RunEpisodes",
    "SaturationDetector",
    "Verdict",
    "diagnose",
    "format_diagnosis",
    "format_verdict",
    "read_episode_stats",
    "read_run",
]
