"""What is to be played: episode i of a run is the same task and seed, whenever it is asked for.

Nothing here remembers anything, so the order in which episodes end, and how many are played at
once, change nothing; a run that is made longer only adds to its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ludus.data.episode import digest_64, task_group_id
from ludus.data.episode_reader import format_episode_id
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture

_NUM_SEEDS = 2**31
"""Seeds fit into 31 bits: environments hand them to numpy and to C."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One episode that is to be played."""

    episode_id: str
    environment: str
    task: JsonObject
    """The arguments of reset, the seed among them."""
    seed: int | None = None
    group_id: str = ""
    member: int = 0
    """Which attempt at the task this is, from 0."""

    @classmethod
    def of(cls, environment: str, *, episode_id: str = "episode", **task: Any) -> Assignment:
        """A single episode, outside of any run."""
        return cls(
            episode_id, environment, task, task.get("seed"), task_group_id(environment, task)
        )


@dataclass(frozen=True)
class Plan:
    """All the episodes of a run; without an end, unless the tasks are given."""

    run_id: str
    mixture: Mixture
    seed: int = 0
    group_size: int = 1
    task: JsonObject = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """What episodes call an environment, where that is not its spec: a URL says who it is."""
    variant_tasks: Mapping[str, JsonObject] = field(default_factory=dict)
    """Arguments of reset that ask for an environment's variant, by spec."""
    tasks: Sequence[JsonObject] = ()
    """Arguments of reset for each task; one without a seed gets that of its number."""

    def spec_of(self, index: int) -> str:
        """Where episode `index` is played."""
        return self.mixture.pick(index // self.group_size, _mixture_offset(self.seed))

    def __getitem__(self, index: int) -> Assignment:
        number, member = divmod(index, self.group_size)
        spec = self.spec_of(index)
        own = self.tasks[number] if self.tasks else {}
        seed = own.get("seed")
        if seed is None:
            seed = task_seed(self.seed, number)
        task = {**self.variant_tasks.get(spec, {}), **self.task, **own, "seed": seed}
        name = self.names.get(spec, spec)
        return Assignment(
            episode_id=format_episode_id(self.run_id, index),
            environment=name,
            task=task,
            seed=seed,
            group_id=task_group_id(name, task),
            member=member,
        )


def task_seed(seed: int, number: int) -> int:
    """The seed of a run's task `number`.

    Scattered, so that runs with different seeds share no tasks: with seeds that only count up from
    the run's, a run of seed 0 and its held-out test of seed 1 would be nearly the same tasks.
    """
    return digest_64(f"{seed}/{number}") % _NUM_SEEDS


def _mixture_offset(seed: int) -> float:
    return digest_64(f"mix/{seed}") / 2**64
