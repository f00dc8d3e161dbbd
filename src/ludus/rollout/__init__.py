"""Play one episode; collect many: schedule, retry, budget, resume."""

from ludus.rollout.job import Job
from ludus.rollout.loop import SYSTEM_PROMPT, Limits, play
from ludus.rollout.plan import Assignment
from ludus.rollout.start import Outcome, collect
from ludus.rollout.task_file import read_tasks

__all__ = [
    "SYSTEM_PROMPT",
    "Assignment",
    "Job",
    "Limits",
    "Outcome",
    "collect",
    "play",
    "read_tasks",
]
