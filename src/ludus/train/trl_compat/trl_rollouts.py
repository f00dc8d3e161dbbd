"""TRL's own rollouts in a GRPO run of Ludus: tasks, environments and rewards for its trainer.

Rewards are computed and episodes are recorded as with Ludus's own rollouts.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ludus.client.event_loop import run_sync
from ludus.data.episode import Episode, Tokens, format_episode_id
from ludus.data.estimates import is_zero_variance
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture
from ludus.scoring.reward_functions import RewardFunctions
from ludus.train.distributed import Distributed
from ludus.train.grpo.groups import SeedCheck, group_prompt_digest, split_into_groups
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.step_metrics import episode_metrics
from ludus.train.trl_compat.environment_factory import (
    TRLEnvironment,
    environment_factory,
    offer_environment_tools,
    tool_schemas,
)
from ludus.train.trl_compat.task_rows import tasks
from ludus.train.trl_compat.trl_episodes import TRLEpisode, build_episode, build_tokens

OnEpisodes = Callable[[Sequence[Episode]], None]
TRLRewardFunction = Callable[..., list[float | None]]


def build_trl_rollouts(
    environments: Mixture,
    config: GRPOConfig,
    *,
    rewards: RewardFunctions,
    distributed: Distributed,
    on_episodes: OnEpisodes,
    agent: JsonObject,
    run_id: str,
    base_url: str | None = None,
    token: str | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> TRLRollouts:
    """Build what a trainer needs to play with TRL's loop.

    `on_episodes` gets every episode, in the main process; `agent` describes the policy in them.
    """
    factory = environment_factory(
        environments, base_url=base_url, token=token, task=config.task, include_reward=False
    )
    classes = tuple(factory.values()) if isinstance(factory, dict) else (factory,)
    check_seeds = SeedCheck(config.allow_unseeded, warn)
    scorer = TRLRolloutScorer(config, rewards, distributed, on_episodes, agent, run_id, check_seeds)
    weights = rewards.weights([environment_class.__name__ for environment_class in classes])
    rows = tasks(
        environments,
        config.steps * config.groups,
        seed=config.tasks_seed,
        system_prompt=config.system_prompt,
    )
    trainer_kwargs = {
        "environment_factory": factory,
        "train_dataset": rows,
        "reward_funcs": [scorer.reward_function(name) for name in weights],
    }
    return TRLRollouts(trainer_kwargs, weights, scorer)


@dataclass(frozen=True, slots=True)
class TRLRollouts:
    """What a TRL trainer is built with, and what is attached to it afterwards."""

    trainer_kwargs: dict[str, Any]
    reward_weights: dict[str, float]
    """By reward function, in their order."""
    scorer: TRLRolloutScorer

    def attach(self, trainer: Any) -> None:
        """Make the trainer offer tools as `collect` does, and pass its token ids to the scorer."""
        offer_environment_tools(trainer)
        generate = trainer._generate

        def generate_and_record(prompts: Any) -> Any:
            output = generate(prompts)
            prompt_ids, completion_ids, masks = output[:3]
            masks = masks or [None] * len(prompt_ids)
            self.scorer.tokens = [
                build_tokens(*row) for row in zip(prompt_ids, completion_ids, masks, strict=True)
            ]
            return output

        trainer._generate = generate_and_record


@dataclass(slots=True)
class TRLRolloutScorer:
    """Builds and scores the episodes of a batch once, for all of TRL's reward functions."""

    config: GRPOConfig
    rewards: RewardFunctions
    distributed: Distributed
    on_episodes: OnEpisodes
    agent: JsonObject
    run_id: str
    check_seeds: SeedCheck
    tokens: list[Tokens] | None = None
    """Of the latest batch; None unless `TRLRollouts.attach` was called."""
    _completions: Any = None
    _scores: list[dict[str, float]] = field(default_factory=list)

    def reward_function(self, name: str) -> TRLRewardFunction:
        """Return a reward function for TRL: one component, None where it does not apply."""

        def component(**batch: Any) -> list[float | None]:
            if batch["completions"] is not self._completions:
                self._completions, self._scores = batch["completions"], self._score_batch(batch)
            return [parts.get(name) for parts in self._scores]

        component.__name__ = name
        return component

    def _score_batch(self, batch: Mapping[str, Any]) -> list[dict[str, float]]:
        """The parts of each reward in a batch of TRL's rollouts; the episodes are passed on."""
        environments: Sequence[TRLEnvironment] = batch["environments"]
        started_at = min(environment._session.state.started_at for environment in environments)
        duration = (datetime.now(UTC) - started_at).total_seconds()
        episodes = self._build_episodes(batch, duration)

        async def score_all() -> list[Episode]:
            # Concurrently: a reward function may be a remote judge with a high latency.
            return await asyncio.gather(*map(self.rewards.score, episodes))

        scored_episodes = run_sync(score_all())
        all_episodes = self.distributed.all_gather(scored_episodes)
        if self.distributed.is_main:
            self.on_episodes(all_episodes)
        size = self.config.group_size
        names = [episode.environment for episode in all_episodes]
        digests = [group_prompt_digest(episode) for episode in all_episodes]
        unseeded = self.check_seeds(digests, names, size)
        groups = split_into_groups([episode.reward for episode in all_episodes], size)
        metrics = {
            **episode_metrics(all_episodes),
            **unseeded,
            "zero_variance": sum(is_zero_variance(group) for group in groups) / len(groups),
            "time/rollout": duration,
        }
        for name, value in metrics.items():
            batch["log_metric"](name, value)
        return [self.rewards.parts(episode) for episode in scored_episodes]

    def _build_episodes(self, batch: Mapping[str, Any], duration: float) -> list[Episode]:
        step = batch["trainer_state"].global_step + 1
        environments: Sequence[TRLEnvironment] = batch["environments"]
        tokens: Sequence[Tokens | None] = self.tokens or [None] * len(environments)
        first = (step - 1) * self.config.episodes + self.distributed.rank * len(environments)
        # TRL runs the environments of a batch one after the other while the model waits.
        environment_s = sum(each._session.state.environment_s for each in environments)
        rows = zip(batch["prompts"], batch["completions"], environments, tokens, strict=True)
        return [
            build_episode(
                TRLEpisode(
                    prompt,
                    completion,
                    environment._session.state,
                    type(environment).__name__,
                    tuple(tool_schemas(type(environment))),
                    row_tokens,
                ),
                episode_id=format_episode_id(self.run_id, first + number),
                agent={**self.agent, "step": step},
                limits=self.config.limits,
                model_s=max(0.0, duration - environment_s),
            )
            for number, (prompt, completion, environment, row_tokens) in enumerate(rows)
        ]
