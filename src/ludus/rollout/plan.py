"""The plan of a run: maps an episode's index to its task and seed; tasks may come from a file.

The mapping is a pure function of the run's settings. It depends neither on concurrency nor on the
order in which episodes end, and a longer run begins with the episodes of a shorter one.

A task file is JSONL: each line is an object with the arguments of `reset`. Rows of NeMo Gym's data
sets are read too. Their task fields are next to the request; the prompt in the request is not used,
because the environment's reset renders its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from ludus.data.episode import format_episode_id, task_group_id
from ludus.data.files import stable_hash
from ludus.data.json_files import numbered_lines
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture
from ludus.environment.task_buckets import Bucket, evenly
from ludus.environment.task_splits import Split
from ludus.errors import ConfigError

if TYPE_CHECKING:
    from ludus.rollout.config import RolloutConfig
    from ludus.rollout.endpoints import EnvironmentEndpoint


_NUM_SEEDS = 2**31
"""Seeds fit into 31 bits: environments pass them to numpy and to C code."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One episode that is to be played."""

    episode_id: str
    environment: str
    task: JsonObject
    """The arguments of `reset`, including the seed."""
    seed: int | None = None
    group_id: str = ""
    member: int = 0
    """Position in the group of episodes with the same task, from 0."""
    split: Split | None = None
    """The split that the task must be from; other seeds are drawn until it is."""

    def redraw(self, number: int) -> Assignment:
        """The same episode with another seed: redraw `number`, counted from 1."""
        seed = stable_hash(f"{self.seed}/redraw/{number}") % _NUM_SEEDS
        task = {**self.task, "seed": seed}
        return replace(self, task=task, seed=seed, group_id=task_group_id(self.environment, task))

    @classmethod
    def of(cls, environment: str, /, **task: Any) -> Assignment:
        """An episode that belongs to no run."""
        return cls("episode", environment, task, task.get("seed"), task_group_id(environment, task))


@dataclass(frozen=True)
class Plan:
    """The episodes of a run by index; unbounded, unless `tasks` are given."""

    run_id: str
    mixture: Mixture
    seed: int = 0
    group_size: int = 1
    task: JsonObject = field(default_factory=dict)
    endpoints: Mapping[str, EnvironmentEndpoint] = field(default_factory=dict)
    """Endpoints by spec, with the recorded name and the arguments that select a variant."""
    tasks: Sequence[JsonObject] = ()
    """Arguments of `reset` for each task; a task without a seed gets one from its number."""
    choose: Callable[[int], tuple[str, JsonObject]] | None = None
    """Gives a task's environment and own arguments by number, instead of `mixture` and `tasks`."""
    splits: Mapping[str, Split] = field(default_factory=dict)
    """The split of each spec's tasks. Tasks that bring their own seed are played as they are."""

    def spec_of(self, index: int) -> str:
        """The spec of the environment of episode `index`."""
        return self._choose_task(index // self.group_size)[0]

    def __getitem__(self, index: int) -> Assignment:
        number, member = divmod(index, self.group_size)
        spec, own_task = self._choose_task(number)
        seed = own_task.get("seed")
        if seed is None:
            seed = task_seed(self.seed, number)
        name, variant_task = spec, dict[str, object]()
        if (endpoint := self.endpoints.get(spec)) is not None:
            name, variant_task = endpoint.name, endpoint.variant_task
        task = {**variant_task, **self.task, **own_task, "seed": seed}
        return Assignment(
            episode_id=format_episode_id(self.run_id, index),
            environment=name,
            task=task,
            seed=seed,
            group_id=task_group_id(name, task),
            member=member,
            split=self.splits.get(spec) if own_task.get("seed") is None else None,
        )

    def _choose_task(self, number: int) -> tuple[str, JsonObject]:
        if self.choose is not None:
            return self.choose(number)
        own_task = self.tasks[number] if self.tasks else {}
        return self.mixture.pick(number, self._offset), own_task

    @cached_property
    def _offset(self) -> float:
        return stable_hash(f"mix/{self.seed}") / 2**64


def purpose_seed(purpose: str, seed: int) -> int:
    """The seed of a run that shares no tasks with runs of the same `seed` for other purposes."""
    return stable_hash(f"{purpose}/{seed}") % _NUM_SEEDS


def task_seed(seed: int, number: int) -> int:
    """The seed of a run's task `number`.

    Hashed, so that runs with different seeds share no tasks: with `seed + number`, a run with
    seed 0 and its held-out tasks with seed 1 would overlap almost completely.
    """
    return stable_hash(f"{seed}/{number}") % _NUM_SEEDS


def build_plan(
    config: RolloutConfig,
    run_id: str,
    mixture: Mixture,
    endpoints: Mapping[str, EnvironmentEndpoint],
    buckets: Sequence[Bucket],
) -> Plan:
    """The plan of a config's episodes; `buckets` come from its `sweep`."""
    return Plan(
        run_id=run_id,
        mixture=mixture,
        seed=config.seed,
        group_size=config.group_size,
        task=dict(config.task),
        endpoints=endpoints,
        tasks=config.tasks,
        choose=evenly(buckets, len(buckets)) if buckets else None,
    )


_REQUEST_FIELD = "responses_create_params"
_NON_TASK_FIELDS = (_REQUEST_FIELD, "agent_ref")


def read_tasks(file: str | Path) -> tuple[JsonObject, ...]:
    """The tasks of a plan from a JSONL file, in order. Empty lines are skipped."""
    path = Path(file).expanduser()
    if not path.is_file():
        problem = "is not a regular file" if path.exists() else "does not exist"
        raise ConfigError(f"The task file {path} {problem}.")
    tasks = []
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        try:
            fields = from_json(line)
        except ValueError as error:
            raise ConfigError(f"{where} is not JSON: {error}.") from None
        if not isinstance(fields, dict):
            raise ConfigError(f"{where} is not a JSON object of reset arguments.")
        check_seed(fields, where)
        task = {
            name: value
            for name, value in fields.items()
            if _REQUEST_FIELD not in fields
            or not (name in _NON_TASK_FIELDS or name.startswith("_ng_"))
        }
        if fields and not task:
            raise ConfigError(
                f"{where} has a prompt and no reset arguments: it does not say which task to play."
            )
        tasks.append(task)
    if not tasks:
        raise ConfigError(
            f"{path} holds no tasks. Write a JSON object of reset arguments per line."
        )
    return tuple(tasks)


def check_seed(task: Mapping[str, object], where: str) -> None:
    """Raise unless the seed of a task is an integer; `where` names the task."""
    seed = task.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ConfigError(f"{where}: the seed must be an integer, got {seed!r}.")
