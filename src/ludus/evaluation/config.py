"""Config of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import ClassVar

from ludus.errors import ConfigError
from ludus.rollout.config import RolloutConfig


@dataclass(frozen=True, kw_only=True)
class EvalConfig(RolloutConfig):
    """Which tasks the candidates play, and how their episodes are judged."""

    seed: int = 999
    """Selects the tasks; by default other ones than those of `CollectConfig`."""
    solved_at: float = 1.0
    """The reward from which a task counts as solved."""
    exclude_tasks_in: str | Path | None = None
    """A data set or a run; tasks whose question is in it are excluded from all metrics."""

    default_num_episodes: ClassVar[int] = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isfinite(self.solved_at):
            raise ConfigError(f"`solved_at` must be a finite number, got {self.solved_at}.")
