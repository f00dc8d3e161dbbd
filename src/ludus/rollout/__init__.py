"""Play one episode; collect many: schedule, retry, budget, resume."""

from ludus.rollout.collect import CollectResult, collect
from ludus.rollout.config import CollectConfig
from ludus.rollout.loop import SYSTEM_PROMPT, EpisodeLimits, run_episode
from ludus.rollout.plan import Assignment
from ludus.rollout.task_file import read_tasks

__all__ = [
    "SYSTEM_PROMPT",
    "Assignment",
    "CollectConfig",
    "CollectResult",
    "EpisodeLimits",
    "collect",
    "read_tasks",
    "run_episode",
]
