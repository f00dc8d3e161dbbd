"""What a run is: the settings that decide what its episodes are.

Two starts with the same job go on with the same run. Addresses, speed and budgets are no part of
it: a server may have moved, and a machine may have grown.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ludus.agents.agent import Agent
from ludus.data.episode import digest_64
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture, parse_mixture
from ludus.errors import ConfigError
from ludus.rollout.loop import SYSTEM_PROMPT, EpisodeLimits
from ludus.rollout.task_file import check_seed

_ADDRESS_FIELDS = ("endpoint",)


@dataclass(frozen=True)
class CollectConfig:
    """Which episodes, on which environments, within which limits."""

    environment: str | Mixture
    """A spec, a mix of them, or a mix as a command line writes it."""
    episodes: int = 0
    """How many; with `tasks` at most so many, and all of them unless told."""
    task: JsonObject = field(default_factory=dict)
    """Arguments of reset for every episode."""
    seed: int = 0
    group_size: int = 1
    """How often each task is played."""
    tasks: Sequence[JsonObject] = ()
    """Arguments of reset for each task, where they do not come from the seed: `read_tasks`."""
    system_prompt: str | None = SYSTEM_PROMPT
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)

    def __post_init__(self) -> None:
        if self.tasks:
            self._check_tasks()
        if self.episodes < 1 or self.group_size < 1:
            raise ConfigError("A run needs at least one episode, and groups at least one member.")
        if "seed" in self.task:
            raise ConfigError("The seed of each episode comes from --seed; leave it out of --task.")

    def _check_tasks(self) -> None:
        if len(self.mixture.specs) > 1:
            raise ConfigError(
                f"--tasks is for one environment, and not for the mix {self.mixture}."
            )
        for number, task in enumerate(self.tasks):
            check_seed(task, f"task {number}")
        there = len(self.tasks) * self.group_size
        object.__setattr__(self, "episodes", min(self.episodes or there, there))

    @cached_property
    def mixture(self) -> Mixture:
        given = self.environment
        return parse_mixture(given) if isinstance(given, str) else given

    def identity(self, agent: Agent) -> JsonObject:
        """What must be the same for a run to go on."""
        described = agent.describe().items()
        tasks = (
            {"tasks": f"{len(self.tasks)} tasks {_tasks_digest(self.tasks)}"} if self.tasks else {}
        )
        return {
            "environment": str(self.mixture),
            "task": self.task,
            **tasks,
            "seed": self.seed,
            "group_size": self.group_size,
            "agent": {key: value for key, value in described if key not in _ADDRESS_FIELDS},
            "system_prompt": self.system_prompt,
            "max_turns": self.limits.max_turns,
            "max_tokens": self.limits.max_tokens,
            "max_episode_tokens": self.limits.max_episode_tokens,
        }


def _tasks_digest(tasks: Sequence[JsonObject]) -> str:
    text = json.dumps(list(tasks), sort_keys=True, ensure_ascii=False, default=str)
    return f"{digest_64(text):016x}"
