"""Diagnosis of GRPO runs from their log and episodes: did it learn, and what to change."""

from ludus.diagnose.diagnosis import (
    Diagnosis,
    RunData,
    diagnose,
    format_diagnosis,
    format_verdict,
    read_run,
)
from ludus.diagnose.episode_stats import RunEpisodes, read_episode_stats
from ludus.diagnose.reward_change import RewardChange
from ludus.diagnose.rules import Verdict

__all__ = [
    "Diagnosis",
    "RewardChange",
    "RunData",
    "RunEpisodes",
    "Verdict",
    "diagnose",
    "format_diagnosis",
    "format_verdict",
    "read_episode_stats",
    "read_run",
]
