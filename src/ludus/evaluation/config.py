"""Config of an evaluation, and of its candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, ClassVar

from ludus.environment.task_splits import TaskChoice
from ludus.errors import ConfigError
from ludus.options import Option, expand_path
from ludus.rollout.config import RolloutConfig


@dataclass(frozen=True, kw_only=True)
class EvalConfig(RolloutConfig):
    """Which tasks the candidates play, and how their episodes are judged."""

    num_episodes: Annotated[
        int | None, Option("Basics", short="n", default="50, or all of --tasks")
    ] = None
    """Number of episodes per candidate."""
    seed: Annotated[int, Option("Tasks", advanced=True)] = 999
    """Seed that selects the tasks; by default not the one of the training data."""
    split: Annotated[TaskChoice, Option("Tasks", hidden=True)] = "test"
    """Split of the tasks to play: for training, for selecting models, for judging them, or all."""
    sweep: Annotated[Sequence[str], Option("Tasks", metavar="NAME=LOW..HIGH|NAME=VALUE,VALUE")] = ()
    """Argument of reset to vary, such as max_digits=2..6, with `num_episodes` at each value;
    repeatable for combinations."""
    max_tokens: Annotated[int | None, Option("Limits")] = 512
    """Maximum number of tokens sampled per reply, reasoning included."""
    solved_at: Annotated[float, Option("Output", hidden=True)] = 1.0
    """The reward from which a task counts as solved."""
    pass_k: Annotated[
        Sequence[int], Option("Output", hidden=True, default="--group-size, if it is above 1")
    ] = ()
    """Also report pass@k, for at most `group_size` attempts; repeatable."""
    exclude_tasks_in: Annotated[Path | None, Option("Tasks", metavar="DATA", parse=expand_path)] = (
        None
    )
    """Data set or run; tasks whose question is in it are excluded from all metrics."""

    default_num_episodes: ClassVar[int] = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isfinite(self.solved_at):
            raise ConfigError(f"`solved_at` must be a finite number, got {self.solved_at}.")
        for k in self.pass_k:
            if not 1 <= k <= self.group_size:
                raise ConfigError(
                    f"`pass_k` must be from 1 to `group_size`, the number of attempts at each "
                    f"task, got {k} with `group_size` {self.group_size}."
                )
