"""Play one episode (`run_episode`), or collect many of them into a run folder (`collect`)."""

from ludus.rollout.collect import CollectResult
from ludus.rollout.config import CollectConfig, RolloutConfig
from ludus.rollout.episode_loop import SYSTEM_PROMPT, EpisodeLimits, run_episode
from ludus.rollout.plan import Assignment, read_tasks

__all__ = [
    "SYSTEM_PROMPT",
    "Assignment",
    "CollectConfig",
    "CollectResult",
    "EpisodeLimits",
    "RolloutConfig",
    "read_tasks",
    "run_episode",
]
