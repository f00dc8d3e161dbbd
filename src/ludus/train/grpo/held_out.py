"""Evaluation on held-out tasks during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from ludus.environment.task_buckets import Bucket, evenly
from ludus.rollout.plan import purpose_seed
from ludus.rollout.progress import PhaseProgress
from ludus.train.distributed import Distributed
from ludus.train.grpo.policy_agent import TrainingPolicyAgent
from ludus.train.grpo.rollout_worker import RolloutWorker
from ludus.train.grpo.step_metrics import format_metrics


@dataclass(frozen=True, slots=True)
class HeldOutEvaluator:
    """Plays the same tasks every time, none of which is trained on, sampled as in training."""

    worker: RolloutWorker
    run_id: str
    seed: int
    num_episodes: int
    distributed: Distributed
    buckets: Sequence[Bucket] = ()
    """Of a curriculum: the tasks are from all of them evenly, so that rewards can be compared."""

    def __call__(self, trainer: Any, step: int) -> Mapping[str, float]:
        """Metrics of the model after `step` training steps."""
        model = trainer.model
        training = model.training
        model.eval()
        try:
            with self.distributed.raise_on_all_ranks():
                agent = self.worker.agent
                assert isinstance(agent, TrainingPolicyAgent)
                self.worker.run(agent.refresh_weights())
                plan = self.worker.plan(
                    f"{self.run_id}-held-out", seed=purpose_seed("held-out", self.seed),
                    group_size=1,
                    choose=evenly(self.buckets, self.num_episodes) if self.buckets else None,
                )  # fmt: skip
                indices = range(
                    self.distributed.rank, self.num_episodes, self.distributed.world_size
                )
                when = f"after step {step:,}" if step else "before training"
                phase = f"Playing held-out tasks {when}"
                episodes = self.worker.play(plan, indices, phase, in_log=step == 0)
            episodes = self.distributed.all_gather(episodes)
        finally:
            model.train(training)
        self.worker.on_phase(PhaseProgress("Training"))
        scored = [episode for episode in episodes if episode.reward is not None]
        metrics: dict[str, float] = {"eval_episodes": len(scored)}
        if scored:
            rewards = [each.reward for each in scored if each.reward is not None]
            metrics["eval_reward"] = fmean(rewards)
            metrics["eval_reward_std"] = pstdev(rewards)
            metrics["eval_cut_off"] = fmean(episode.cut_off for episode in scored)
            metrics |= {f"eval_{name}": value for name, value in format_metrics(scored).items()}
        return metrics
