"""The tasks that ship: small functions, each with a solution and inputs to test others with."""

from __future__ import annotations

from typing import Literal

from ludus.envs.python.tasks import algorithms, basics, containers
from ludus.envs.python.tasks.task import Case, Task, collect_tasks

__all__ = ["POOLS", "TASKS", "Case", "Pool", "Task"]

Pool = Literal["all", "train", "test"]

TASKS = collect_tasks([basics, containers, algorithms])

_NAMES = tuple(TASKS)
POOLS: dict[Pool, tuple[str, ...]] = {
    "all": _NAMES,
    # Every fifth task is held out, so that each subject has some on both sides.
    "train": tuple(name for i, name in enumerate(_NAMES) if i % 5 != 4),
    "test": _NAMES[4::5],
}
"""Names of tasks; the two pools `train` and `test` have none in common."""
