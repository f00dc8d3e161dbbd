"""Evaluate on tasks that are not trained on: to select the best model, and to compare it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from ludus.data.episode import Episode
from ludus.data.paired_rewards import Rewards
from ludus.environment.task_buckets import Bucket, evenly
from ludus.rollout.plan import purpose_seed
from ludus.rollout.progress import PhaseProgress
from ludus.train.distributed import Distributed
from ludus.train.grpo.group_rollouts import format_metrics
from ludus.train.grpo.policy_agent import current_policy
from ludus.train.grpo.rollout_worker import RolloutWorker

Purpose = Literal["held-out", "fresh"]
"""Held-out tasks select the best model; fresh ones are played only at the start and at the end."""


@dataclass(frozen=True, slots=True)
class HeldOutEvaluator:
    """Plays the same tasks every time, sampled as in training."""

    worker: RolloutWorker
    run_id: str
    seed: int
    num_episodes: int
    distributed: Distributed
    buckets: Sequence[Bucket] = ()
    """Buckets of a curriculum: tasks are drawn evenly from them, so that rewards are comparable."""

    def play(self, trainer: Any, purpose: Purpose, when: str) -> Sequence[Episode]:
        """Play the tasks; returns the episodes of all ranks, in the order of tasks."""
        with self.distributed.raise_on_all_ranks(), current_policy(self.worker, trainer.model):
            plan = self.worker.plan(
                f"{self.run_id}-{purpose}", seed=purpose_seed(purpose, self.seed), group_size=1,
                choose=evenly(self.buckets, self.num_episodes) if self.buckets else None,
                split="validation" if purpose == "held-out" else "test",
            )  # fmt: skip
            rank, world_size = self.distributed.rank, self.distributed.world_size
            bounds = [self.num_episodes * at // world_size for at in (rank, rank + 1)]
            phase = f"Playing {purpose} tasks {when}"
            episodes = self.worker.play(plan, range(*bounds), phase, in_log=purpose == "fresh")
        episodes = self.distributed.all_gather(episodes)
        self.worker.on_phase(PhaseProgress("Training"))
        return episodes


def rewards_of(episodes: Sequence[Episode]) -> Rewards:
    """The reward of each task, rounded as in the log."""
    return [None if each.reward is None else round(each.reward, 6) for each in episodes]


def evaluation_metrics(episodes: Sequence[Episode]) -> dict[str, Any]:
    """The log entry of an evaluation."""
    rewards = rewards_of(episodes)
    scored = [episode for episode in episodes if episode.reward is not None]
    metrics: dict[str, Any] = {"eval_episodes": len(scored), "eval_rewards": rewards}
    if scored:
        metrics["eval_reward"] = fmean(each for each in rewards if each is not None)
        metrics["eval_cut_off"] = fmean(episode.cut_off for episode in scored)
        metrics |= {f"eval_{name}": value for name, value in format_metrics(scored).items()}
    return metrics
