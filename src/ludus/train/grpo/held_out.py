"""Evaluation on held-out tasks during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from ludus.data.episode import Episode
from ludus.data.files import write_atomically
from ludus.environment.task_buckets import Bucket, evenly
from ludus.rollout.plan import purpose_seed
from ludus.rollout.progress import PhaseProgress
from ludus.train.distributed import Distributed
from ludus.train.grpo.packed_groups import EpisodeTokens
from ludus.train.grpo.policy_agent import TrainingPolicyAgent
from ludus.train.grpo.rollout_worker import RolloutWorker
from ludus.train.grpo.step_metrics import format_metrics
from ludus.train.output.checkpoints import start_rows_path

if TYPE_CHECKING:
    from ludus.train.grpo.trainer import GRPOTrainer


@dataclass(frozen=True, slots=True)
class HeldOutEvaluator:
    """Plays the same tasks every time, none of which is trained on, sampled as in training."""

    worker: RolloutWorker
    run_id: str
    seed: int
    num_episodes: int
    distributed: Distributed
    start_kl: StartKL | None = None
    """Measures how far the policy has moved; None: it is not measured."""
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
            kl = self._measure_kl(trainer, step, episodes)
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
        if kl is not None:
            metrics["eval_kl"] = kl
        return metrics

    def _measure_kl(self, trainer: Any, step: int, episodes: Sequence[Episode]) -> float | None:
        if self.start_kl is None:
            return None
        if step == 0:
            self.start_kl.record(episodes)
            return None
        return self.start_kl.estimate(trainer)


_ROWS = TypeAdapter(list[EpisodeTokens])


class StartKL:
    """Keeps the start model's episodes, also on disk, for a run that is resumed."""

    def __init__(self, out: Path, distributed: Distributed) -> None:
        self._path = start_rows_path(out)
        self._distributed = distributed
        self._rows: list[EpisodeTokens] | None = None

    def record(self, episodes: Sequence[Episode]) -> None:
        """Keep the episodes of the start model on all ranks."""
        rows = [EpisodeTokens.of(episode) for episode in episodes]
        self._rows = [row for row in rows if row.ids]
        with self._distributed.raise_on_all_ranks():
            if self._distributed.is_main:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, _ROWS.dump_json(self._rows).decode())

    def estimate(self, trainer: GRPOTrainer) -> float | None:
        """The divergence per sampled token; None if the start model's episodes are unknown."""
        if self._rows is None:
            self._rows = self._read_rows()
        rank, size = self._distributed.rank, self._distributed.world_size
        rows = self._rows[rank::size]
        before = [logprob for row in rows for logprob in row.logprobs]
        sums = [(sum(before) - float(trainer.score(rows).sum()), len(before))]
        difference, tokens = map(sum, zip(*self._distributed.all_gather(sums), strict=True))
        return difference / tokens if tokens else None

    def _read_rows(self) -> list[EpisodeTokens]:
        try:
            return _ROWS.validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return []
