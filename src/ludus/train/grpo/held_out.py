"""How the model does on tasks that it is never trained on, every so many steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ludus.data.episode import Episode, digest_64
from ludus.rollout.progress import PhaseProgress
from ludus.train.distributed import Distributed
from ludus.train.grpo.rollout_worker import RolloutWorker
from ludus.train.grpo.step_metrics import format_metrics

_SEED_RANGE = 2**31


@dataclass(frozen=True, slots=True)
class HeldOutEvaluator:
    """The same tasks each time, sampled as in training."""

    worker: RolloutWorker
    run_id: str
    seed: int
    episodes: int
    world: Distributed

    def __call__(self, trainer: Any) -> Mapping[str, float]:
        """Play them with the model as it is now."""
        model = trainer.model
        training = model.training
        model.eval()
        try:
            with self.world.raise_on_all_ranks():
                self.worker.run(_refresh_agent(self.worker))
                played = self._play_tasks(trainer.state.global_step)
        finally:
            model.train(training)
        self.worker.phase(PhaseProgress("Training"))
        everybodys = self.world.all_gather(played)
        scored = [episode for episode in everybodys if episode.reward is not None]
        found: dict[str, float] = {"eval_episodes": len(scored)}
        if scored:
            found["eval_reward"] = fmean(each.reward for each in scored if each.reward is not None)
            found["eval_cut_off"] = fmean(episode.cut_off for episode in scored)
            found |= {f"eval_{name}": share for name, share in format_metrics(scored).items()}
        return found

    def _play_tasks(self, step: int) -> list[Episode]:
        # Another seed, so other tasks: seeds of tasks are scattered.
        seed = digest_64(f"held-out/{self.seed}") % _SEED_RANGE
        plan = self.worker.plan(f"{self.run_id}-held-out", seed=seed, group_size=1)
        mine = range(self.world.rank, self.episodes, self.world.world_size)
        when = f"after step {step:,}" if step else "before training"
        phase = f"Playing held-out tasks {when}"
        return self.worker.play(plan, list(mine), phase, in_log=step == 0)


async def _refresh_agent(stage: RolloutWorker) -> None:
    renew = getattr(stage.agent, "renewed", None)
    if renew is not None:
        await renew()
