"""Configs of the stages that play episodes: what is played, by whom, where and how."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ludus.agents.agent import Agent
from ludus.agents.combined_agent import ExploringAgent, TutoredAgent
from ludus.agents.oracle import OracleAgent
from ludus.data.config import check_at_least, check_field_types, check_positive
from ludus.data.files import stable_hash
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture, parse_mixture
from ludus.environment.task_buckets import Bucket, build_buckets, parse_axes, select_environments
from ludus.environment.task_splits import TaskChoice
from ludus.errors import ConfigError
from ludus.options import Option, parse_assignments, parse_duration
from ludus.rollout.episode_loop import SYSTEM_PROMPT, EpisodeLimits
from ludus.rollout.plan import check_seed, read_tasks
from ludus.rollout.stats import RunBudget

STALL_WARNING_S = 60.0
_ADDRESS_FIELDS = ("endpoint",)
"""Fields of an agent's description that may change between two starts of one run."""


@dataclass(frozen=True, kw_only=True)
class EpisodeConfig:
    """What all stages that play in an environment have in common."""

    task: Annotated[
        Mapping[str, Any],
        Option("Tasks", metavar="KEY=VALUE|JSON", combine=parse_assignments),
    ] = field(default_factory=dict)
    """Arguments of reset for every episode; repeatable."""
    dataset_config: Annotated[
        Mapping[str, Any],
        Option("Tasks", hidden=True, metavar="JSON", combine=parse_assignments),
    ] = field(default_factory=dict)
    """The argument `dataset_config` of reset, as OpenEnv's command line takes it."""
    system_prompt: Annotated[
        str | None,
        Option("Sampling", advanced=True, default="a general one", parse=lambda text: text or None),
    ] = SYSTEM_PROMPT
    """System prompt; '' for none."""
    max_turns: Annotated[
        int | None, Option("Limits", default="20, or more if the environment's rules give more")
    ] = None
    """Maximum number of replies per episode."""
    max_tokens: Annotated[int | None, Option("Limits", default="no limit")] = None
    """Maximum number of tokens sampled per reply, reasoning included."""
    base_url: Annotated[str | None, Option("Basics", hidden=True, metavar="URL")] = None
    """Address of a server of the environment; by default it runs in this process. Not stored."""
    token: Annotated[str | None, Option("Tasks", hidden=True, env_var="LUDUS_TOKEN")] = field(
        default=None, repr=False
    )
    """Bearer token of the environment's server. Prefer LUDUS_TOKEN: other users of this machine can
    read --token in the list of processes. Not stored."""

    def __post_init__(self) -> None:
        check_field_types(self)
        for name in ("max_turns", "max_tokens"):
            check_at_least(name, getattr(self, name), 1)
        if self.dataset_config:
            task = {**self.task, "dataset_config": dict(self.dataset_config)}
            object.__setattr__(self, "task", task)
            object.__setattr__(self, "dataset_config", {})
        if "seed" in self.task:
            raise ConfigError("The seed of each episode comes from `seed`; remove it from `task`.")


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(EpisodeConfig):
    """What collecting and evaluating have in common.

    Two calls with the same `identity` go on with the same run. Addresses, concurrency and time-outs
    are no part of it: they may change from one start of a run to the next.
    """

    num_episodes: Annotated[
        int | None, Option("Basics", short="n", default="10, or all of --tasks")
    ] = None
    """Number of episodes."""
    tasks: Annotated[
        Sequence[JsonObject],
        Option(
            "Tasks",
            advanced=True,
            metavar="FILE",
            parse=read_tasks,
        ),
    ] = ()
    """JSONL file of tasks: reset arguments, or input rows of NeMo Gym."""
    sweep: Annotated[
        Sequence[str], Option("Tasks", hidden=True, metavar="NAME=LOW..HIGH|NAME=VALUE,VALUE")
    ] = ()
    """Argument of reset to vary, such as max_digits=2..6, with `num_episodes` at each value;
    repeatable for combinations."""
    seed: Annotated[int, Option("Tasks", advanced=True)] = 0
    """Seed that selects the tasks."""
    split: Annotated[TaskChoice, Option("Tasks", hidden=True)] = "train"
    """Split of the tasks to play: for training, for selecting models, for judging them, or all."""
    group_size: Annotated[int, Option("Tasks", advanced=True)] = 1
    """Number of episodes per task."""
    max_episode_tokens: Annotated[
        int | None, Option("Limits", advanced=True, default="no limit")
    ] = None
    """Maximum number of tokens sampled per episode, over all its replies."""
    episode_timeout: Annotated[
        float | None,
        Option("Limits", hidden=True, metavar="TIME", default="1h", parse=parse_duration),
    ] = 3600.0
    """Timeout of one episode, such as 90s, 10m or 2h."""
    ray: Annotated[
        str | None, Option("Limits", advanced=True, metavar="ADDRESS", default="none")
    ] = None
    """Ray cluster to play on: HOST:PORT of its head node, `auto` for the cluster of this machine,
    or `local` to start one."""
    resume: Annotated[bool, Option("Output", hidden=True)] = True
    """Resume the run in this folder, or start a new one beside it."""
    retry_broken: Annotated[bool, Option("Output", hidden=True)] = False
    """Play episodes again that the infrastructure broke in an earlier start."""

    concurrency: Annotated[int, Option("Limits", advanced=True)] = 64
    """Maximum number of concurrent episodes."""
    max_attempts: Annotated[int, Option("Limits", hidden=True)] = 3
    """Maximum number of attempts at an episode that the infrastructure breaks."""
    retry_delay: float = 1.0
    """Seconds before the second attempt; doubled for each further one."""
    reconnect_timeout: float = 120.0
    """Seconds that a server may be unreachable in the middle of a run."""
    stall_warning: float = STALL_WARNING_S
    """Seconds after which the watchdog reports what an episode is waiting for."""

    default_num_episodes: ClassVar[int] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_episodes", "group_size", "concurrency", "max_attempts"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("max_episode_tokens", self.max_episode_tokens, 1)
        check_at_least("seed", self.seed, 0)
        check_positive("episode_timeout", self.episode_timeout)
        for number, task in enumerate(self.tasks):
            check_seed(task, f"task {number}")
        if parse_axes(self.sweep, option="sweep") and self.tasks:
            raise ConfigError("`sweep` and `tasks` both say which tasks are played. Give one.")
        num_episodes = self.num_episodes or self.default_num_episodes
        if self.sweep and num_episodes % self.group_size:
            raise ConfigError(
                f"With `sweep`, `num_episodes` must be a multiple of `group_size`, so that each "
                f"value has as many: got {num_episodes} and {self.group_size}."
            )

    @property
    def total_episodes(self) -> int:
        """`num_episodes`, with its default and within the bound that `tasks` sets."""
        if not self.tasks:
            levels = prod(len(axis.values) for axis in parse_axes(self.sweep, option="sweep"))
            return levels * (self.num_episodes or self.default_num_episodes)
        available = len(self.tasks) * self.group_size
        return min(self.num_episodes or available, available)

    @property
    def limits(self) -> EpisodeLimits:
        return EpisodeLimits(
            max_turns=self.max_turns,
            max_tokens=self.max_tokens,
            max_episode_tokens=self.max_episode_tokens,
            episode_timeout=self.episode_timeout,
        )

    def parse_environment(self, env: str | Mixture) -> Mixture:
        """Parse a spec, a URL or a mixture; raises if `tasks` is given for several of them."""
        mixture = parse_mixture(env) if isinstance(env, str) else env
        axes = parse_axes(self.sweep, option="sweep")
        mixture = select_environments(mixture, axes, option="sweep")
        if self.tasks and len(mixture.specs) > 1:
            raise ConfigError(f"`tasks` is for one environment, not for the mixture {mixture}.")
        return mixture

    def build_sweep(self, mixture: Mixture) -> tuple[Bucket, ...]:
        """The tasks' arguments at each combination of values of `sweep`, from easy to hard."""
        axes = parse_axes(self.sweep, option="sweep")
        return build_buckets(mixture, axes, self.task, option="sweep")

    def identity(self, mixture: Mixture, agent: Agent) -> JsonObject:
        """The settings that decide what the episodes are, as `run.json` stores them.

        A run is only continued if they are the same. The keys are a stored format.
        """
        settings: JsonObject = {"environment": str(mixture), "task": self.task}
        if self.tasks:
            text = json.dumps(list(self.tasks), sort_keys=True, ensure_ascii=False, default=str)
            settings["tasks"] = f"{len(self.tasks)} tasks {stable_hash(text):016x}"
        # MCP servers can name a file of tasks: `mcp:COMMAND#FILE`.
        for spec in mixture.specs:
            name = spec.rpartition("#")[2] if spec.startswith("mcp") and "#" in spec else ""
            with suppress(OSError, ValueError):  # A missing file is reported when it is played.
                if (file := Path(name).expanduser()).is_file():
                    digest = f"{stable_hash(file.read_text(encoding='utf-8')):016x}"
                    settings.setdefault("task_files", {})[name] = digest
        if self.sweep:
            settings["sweep"] = list(self.sweep)
        if self.split != "train":
            settings["split"] = self.split
        return {
            **settings,
            "seed": self.seed,
            "group_size": self.group_size,
            "agent": _without_addresses(agent.describe()),
            "system_prompt": self.system_prompt,
            "max_turns": self.max_turns,
            "max_tokens": self.max_tokens,
            "max_episode_tokens": self.max_episode_tokens,
        }


@dataclass(frozen=True, kw_only=True)
class CollectConfig(RolloutConfig):
    """Which episodes `collect` plays, the agent, and the limits."""

    agent: Agent | None = None
    """Agent that plays (default: the environment's own solution)."""
    explore: Annotated[float, Option("Agent", advanced=True)] = 0.0
    """Probability that a turn's action is random; such turns are context without loss."""
    tutor: Agent | None = None
    """Agent that labels every state of the agent's episodes with its own reply."""
    working: Annotated[bool, Option("Agent", hidden=True)] = False
    """Let the oracle write its working as text, as agent or as tutor."""
    max_tokens: Annotated[int | None, Option("Limits")] = 2048
    """Maximum number of tokens sampled per reply, reasoning included."""
    max_cost: Annotated[float | None, Option("Limits", advanced=True, default="no limit")] = None
    """Stop at this cost in US dollars, over all starts of the run."""
    max_total_tokens: Annotated[int | None, Option("Limits", hidden=True, default="no limit")] = (
        None
    )
    """Stop at this number of prompt and completion tokens, over all starts of the run."""
    max_time: Annotated[
        float | None,
        Option("Limits", advanced=True, metavar="TIME", default="no limit", parse=parse_duration),
    ] = None
    """Stop after this time from this start on: 90s, 10m or 2h."""
    workers: Annotated[
        int | None,
        Option("Limits", advanced=True, default="up to one per core, if the run is long enough"),
    ] = None
    """Processes that play, if environment and agent only compute; 1: this process alone. With
    `ray`, workers on the cluster."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ray is not None and self.max_attempts < 2:
            raise ConfigError(
                f"`max_attempts` must be at least 2 with `ray`, because nodes can be lost, got "
                f"{self.max_attempts}."
            )
        check_at_least("workers", self.workers, 1)
        for name in ("max_cost", "max_total_tokens", "max_time"):
            check_positive(name, getattr(self, name))
        if not 0 <= self.explore <= 1:
            raise ConfigError(f"`explore` must be from 0 to 1, got {self.explore}.")
        if self.tutor is not None and self.tutor.provider == "human":
            raise ConfigError("`tutor` cannot be human: it replies in every state of all episodes.")
        agents = (self.agent or OracleAgent(), self.tutor)
        if self.working and not any(isinstance(agent, OracleAgent) for agent in agents):
            raise ConfigError("`working` is the oracle's, and neither agent nor tutor is one.")

    @classmethod
    def from_rollout(cls, config: RolloutConfig, agent: Agent) -> CollectConfig:
        """The config with which an agent plays the episodes of another stage."""
        shared = {each.name: getattr(config, each.name) for each in fields(RolloutConfig)}
        return cls(**shared, agent=agent)

    def build_player(self) -> Agent:
        """The agent as it plays: with its random actions, and beside its tutor."""
        agent = self._with_working(self.agent or OracleAgent())
        if self.explore:
            agent = ExploringAgent(agent, self.explore)
        return agent if self.tutor is None else TutoredAgent(agent, self._with_working(self.tutor))

    def _with_working(self, agent: Agent) -> Agent:
        if not self.working or not isinstance(agent, OracleAgent):
            return agent
        agent = copy(agent)
        agent.working = True
        return agent

    @property
    def budget(self) -> RunBudget:
        return RunBudget(
            max_cost=self.max_cost,
            max_total_tokens=self.max_total_tokens,
            max_time=self.max_time,
        )


def _without_addresses(description: JsonObject) -> JsonObject:
    """The description of an agent, and of its tutor, without what may change between starts."""
    return {
        key: _without_addresses(value) if key == "tutor" else value
        for key, value in description.items()
        if key not in _ADDRESS_FIELDS
    }
