"""TRL's own rollouts in a run of Ludus's: tasks, environments and rewards for its trainer.

The rewards are those of `ludus.train.grpo.rewards`, and every episode is kept, as with Ludus's own
rollouts. What becomes of groups that teach nothing is the trainer's business, as it is there.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ludus.client.event_loop import run_sync
from ludus.data.episode import Episode, Tokens
from ludus.data.episode_reader import format_episode_id
from ludus.data.reward_variance import is_zero_variance
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture
from ludus.train.distributed import Distributed
from ludus.train.grpo.groups import SeedCheck, prompt_digest, split_into_groups
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.rewards import RewardFunctions
from ludus.train.grpo.step_metrics import episode_metrics
from ludus.train.trl_compat.environment_factory import (
    TRLEnvironment,
    environment_factory,
    tool_schemas,
    use_exact_tool_schemas,
)
from ludus.train.trl_compat.task_rows import tasks
from ludus.train.trl_compat.trl_episodes import TRLRollout, build_episode, build_tokens

OnEpisodes = Callable[[Sequence[Episode]], None]
RewardFunction = Callable[..., list[float | None]]


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
    """What a trainer needs to play with TRL's loop.

    `keep` is given every episode, in the first process; `agent` is how episodes describe who
    played.
    """
    made = environment_factory(
        environments, base_url=base_url, token=token, task=config.task, include_reward=False
    )
    kinds = tuple(made.values()) if isinstance(made, dict) else (made,)
    check_seeds = SeedCheck(config.allow_unseeded, warn)
    scoring = EpisodeScorer(config, rewards, distributed, on_episodes, agent, run_id, check_seeds)
    weights = rewards.weights([kind.__name__ for kind in kinds])
    rows = tasks(
        environments,
        config.steps * config.groups,
        seed=config.seed,
        system_prompt=config.system_prompt,
    )
    parts = {
        "environment_factory": made,
        "train_dataset": rows,
        "reward_funcs": [scoring.reward_function(name) for name in weights],
    }
    return TRLRollouts(parts, weights, scoring)


@dataclass(frozen=True, slots=True)
class TRLRollouts:
    """For a trainer of TRL's."""

    trainer_kwargs: dict[str, Any]
    """Keyword arguments of the trainer."""
    reward_weights: dict[str, float]
    """Of the reward functions, by name, in their order."""
    scorer: EpisodeScorer

    def attach(self, trainer: Any) -> None:
        """Once it is made: have it show tools as `collect` does, and tell the ids that it plays."""
        use_exact_tool_schemas(trainer)
        generate = trainer._generate

        def watched(prompts: Any) -> Any:
            made = generate(prompts)
            ids, replies, masks = made[:3]
            masks = masks or [None] * len(ids)
            self.scorer.tokens = [
                build_tokens(*each) for each in zip(ids, replies, masks, strict=True)
            ]
            return made

        trainer._generate = watched


@dataclass(slots=True)
class EpisodeScorer:
    """Makes episodes of a batch once, and answers all of TRL's reward functions from them."""

    config: GRPOConfig
    rewards: RewardFunctions
    distributed: Distributed
    on_episodes: OnEpisodes
    agent: JsonObject
    run_id: str
    check_seeds: SeedCheck
    tokens: list[Tokens] | None = None
    """Of the newest batch, where somebody watches the trainer."""
    _completions: Any = None
    _scores: list[dict[str, float]] = field(default_factory=list)

    def reward_function(self, name: str) -> RewardFunction:
        """One of TRL's reward functions: a part of the reward, None where it does not apply."""

        def column(**batch: Any) -> list[float | None]:
            if batch["completions"] is not self._completions:
                self._completions, self._scores = batch["completions"], self._score_batch(batch)
            return [parts.get(name) for parts in self._scores]

        column.__name__ = name
        return column

    def _score_batch(self, batch: Mapping[str, Any]) -> list[dict[str, float]]:
        step = batch["trainer_state"].global_step + 1
        seats: Sequence[TRLEnvironment] = batch["environments"]
        began = min(seat._session.state.started_at for seat in seats)
        took = (datetime.now(UTC) - began).total_seconds()
        mine = self._build_episodes(batch, step, took)
        scored = run_sync(self._apply_rewards(mine))
        self._record(self.distributed.all_gather(scored), batch["log_metric"], took)
        return [self.rewards.parts(episode) for episode in scored]

    async def _apply_rewards(self, episodes: Sequence[Episode]) -> list[Episode]:
        """All at once: a judge who is asked over a network takes as long for many as for one."""
        return await asyncio.gather(*map(self.rewards.score, episodes))

    def _build_episodes(self, batch: Mapping[str, Any], step: int, took: float) -> list[Episode]:
        seats: Sequence[TRLEnvironment] = batch["environments"]
        tokens: Sequence[Tokens | None] = self.tokens or [None] * len(seats)
        first = (step - 1) * self.config.episodes + self.distributed.rank * len(seats)
        # One after the other, all of a batch: while one environment acts, everything waits.
        acted = sum(seat._session.state.environment_s for seat in seats)
        columns = zip(batch["prompts"], batch["completions"], seats, tokens, strict=True)
        return [
            build_episode(
                TRLRollout(
                    prompt,
                    completion,
                    seat._session.state,
                    type(seat).__name__,
                    tuple(tool_schemas(type(seat))),
                    known,
                ),
                episode_id=format_episode_id(self.run_id, first + at),
                agent={**self.agent, "step": step},
                limits=self.config.limits,
                model_s=max(0.0, took - acted),
            )
            for at, (prompt, completion, seat, known) in enumerate(columns)
        ]

    def _record(self, episodes: Sequence[Episode], log: Callable[..., None], took: float) -> None:
        """Keep them, check them, and say in figures what they were like."""
        if self.distributed.is_main:
            self.on_episodes(episodes)
        size = self.config.group_size
        names = [episode.environment for episode in episodes]
        unseeded = self.check_seeds([prompt_digest(each) for each in episodes], names, size)
        groups = split_into_groups([episode.reward for episode in episodes], size)
        equal = sum(is_zero_variance(group) for group in groups) / len(groups)
        found = {**episode_metrics(episodes), **unseeded, "equal": equal, "time/rollout": took}
        for name, value in found.items():
            log(name, value)
