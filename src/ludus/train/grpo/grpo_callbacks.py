"""Between two steps of GRPO: timing, held-out tasks, rollbacks, and early stopping."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from ludus.data.paired_rewards import Rewards
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import EPISODES_FILE, is_before_checkpoint, read_log
from ludus.diagnose.detectors import SaturationDetector
from ludus.errors import RunError
from ludus.train.callbacks import TERMINATED, RunCallback
from ludus.train.context import GRPOContext
from ludus.train.grpo.curriculum import Curriculum
from ludus.train.grpo.group_rollouts import RolloutLog, to_log_line
from ludus.train.grpo.health import Action, HealthMonitor
from ludus.train.grpo.held_out import HeldOutEvaluator, evaluation_metrics, rewards_of
from ludus.train.grpo.learning_rate import TrustRegion
from ludus.train.output.checkpoints import CheckpointState
from ludus.train.output.record import BucketRecord, Comparison
from ludus.train.resume import start_or_resume

EVENTS = ("on_step_begin", "on_optimizer_step", "on_step_end", "on_epoch_end", "on_log")


class GRPOCallback(RunCallback):
    """Handles the trainer's events.

    Args:
        episodes: Opened when training starts.
        environment_names: The environments' names in episodes, for the record.
        held_out: Plays the tasks that are not trained on.
        curriculum: Checkpoints hold its state.
    """

    def __init__(
        self,
        context: GRPOContext,
        episodes: RolloutLog,
        environment_names: tuple[str, ...],
        held_out: HeldOutEvaluator,
        *,
        curriculum: Curriculum | None = None,
        resume_state: CheckpointState | None = None,
        overwrite: bool = False,
    ) -> None:
        config = context.config
        super().__init__(
            context.out, context.progress, context.distributed,
            checkpoint_every=config.checkpoint_every, resume_state=resume_state,
            deadline=context.deadline,
        )  # fmt: skip
        self._context, self._episodes, self._overwrite = context, episodes, overwrite
        self._environment_names = environment_names
        self._held_out, self._eval_every = held_out, config.held_out_interval
        resumed_from = resume_state.step if resume_state else -1
        past = [line for line in read_log(self.out) if is_before_checkpoint(line, resumed_from)]
        self._saturation = SaturationDetector() if config.early_stop else None
        if self._saturation is not None:
            for line in past:
                self._saturation.update(line)
        self.health = HealthMonitor(
            context, rollbacks=resume_state.rollbacks if resume_state else 0,
            past_entries=past if resume_state else None,
        )  # fmt: skip
        starts = (line["fresh_rewards"] for line in past if "fresh_rewards" in line)
        self._start_rewards: Rewards | None = next(starts, None)
        """Rewards of the model before training, on fresh tasks."""
        self.trust_region: TrustRegion | None = None
        if config.target_kl:
            factor = resume_state.trust_factor if resume_state else 1.0
            self.trust_region = TrustRegion(config.target_kl, factor)
        self._saturation_reason: str | None = None
        """Why there is no learning signal left, if so."""
        self._step_started = perf_counter()
        self._episode_bytes = resume_state.episodes if resume_state else 0
        self._curriculum = curriculum
        self._curriculum_state = curriculum.state if curriculum else {}
        self._evaluation_s = max((line.get("time/eval", 0.0) for line in past), default=0.0)
        """Duration of the longest evaluation on held-out tasks."""

    def checkpoint_fields(self) -> JsonObject:
        """The fields as of the last whole step: later episodes are drawn and played again."""
        return {
            "episodes": self._episode_bytes,
            "rollbacks": self.health.rollbacks,
            "trust_factor": 1.0 if self.trust_region is None else self.trust_region.factor,
            "curriculum": self._curriculum_state,
        }

    @property
    def seconds_to_end(self) -> float:
        """Includes evaluations of the last model on held-out and on fresh tasks."""
        return super().seconds_to_end + 2.2 * self._evaluation_s

    @property
    def buckets(self) -> tuple[BucketRecord, ...]:
        return self._curriculum.record() if self._curriculum else ()

    def start_run(self) -> None:
        trained_on = self._context.environment_record(self._environment_names)
        start_or_resume(self._context, trained_on, self.resume_state, overwrite=self._overwrite)
        self._episodes.open(self.resume_state.episodes if self.resume_state else 0)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, trainer: Any, **_: Any
    ) -> None:
        super().on_train_begin(args, state, control, trainer=trainer)
        if self._eval_every and self.resume_state is None:
            self._start_rewards = self._play_fresh(trainer, 0, "before training")
            self._log_held_out(trainer, 0)

    def on_step_begin(self, args: Any, state: Any, control: Any, *, trainer: Any, **_: Any) -> None:
        if self.health.decide() is Action.ROLL_BACK:
            best = self.health.roll_back(trainer)
            if self.distributed.is_main:
                self.write_log({"step": state.global_step, "rollback_to": best.step})
        self._step_started = perf_counter()

    def on_optimizer_step(
        self, args: Any, state: Any, control: Any, *, trainer: Any, **_: Any
    ) -> None:
        trainer.check_update()

    def on_step_end(
        self, args: Any, state: Any, control: Any, *, trainer: Any = None, **_: Any
    ) -> None:
        seconds, metrics = perf_counter() - self._step_started, trainer._metrics["train"]
        rollout = metrics["time/rollout"][-1] if metrics["time/rollout"] else 0.0
        metrics["time/step"].append(seconds)
        metrics["time/train"].append(max(0.0, seconds - rollout))
        if self.distributed.is_main:
            self._episode_bytes = (self.out / EPISODES_FILE).stat().st_size
        if self._curriculum is not None:
            self._curriculum_state = self._curriculum.state
        step = state.global_step
        # Only the main process knows the log; all ranks must decide the same.
        (saturated,) = self.distributed.all_reduce_max([int(self._saturation_reason is not None)])
        hopeless = self.health.decide() is Action.STOP
        stop_early = bool(saturated) or hopeless
        if hopeless and stop_early and self.health.verdict is not None:
            self.progress.say(f"Stopped: {self.health.verdict}")
        self._poll()
        last = stop_early or self.stop_reason is not None or step >= state.max_steps
        due = last or step % self._eval_every == 0 if self._eval_every else False
        if due and self.stop_reason != TERMINATED:
            self._log_held_out(trainer, step)
        if step < state.max_steps:
            self._save_or_stop(control)
        if stop_early:
            control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Do nothing: tasks have no epochs."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not self.distributed.is_main or not logs or "train_runtime" in logs:
            return
        line = {"step": state.global_step, **to_log_line(logs)}
        self.write_log(line)
        self.health.observe(line)
        if self._saturation is not None and self._saturation_reason is None:
            self._saturation_reason = self._saturation.update(line)
            if self._saturation_reason:
                self.progress.say(f"Nothing is left to learn: {self._saturation_reason}")

    def _log_held_out(self, trainer: Any, step: int) -> None:
        when = f"after step {step:,}" if step else "before training"
        started = perf_counter()
        episodes = self._held_out.play(trainer, "held-out", when)
        seconds = perf_counter() - started
        self._evaluation_s = max(self._evaluation_s, seconds)
        if self.distributed.is_main:
            line = {"step": step, **evaluation_metrics(episodes), "time/eval": seconds}
            self.write_log(line)
            self.health.observe(line)
        self.health.record_held_out(trainer, step, rewards_of(episodes))

    def _play_fresh(self, trainer: Any, step: int, when: str) -> Rewards:
        rewards = rewards_of(self._held_out.play(trainer, "fresh", when))
        if self.distributed.is_main:
            self.write_log({"step": step, "fresh_rewards": rewards})
        return rewards

    def conclude(self, trainer: Any, *, playable: bool) -> None:
        """Choose the model that is saved, and compare it with the start on fresh tasks.

        These tasks did not select it: the best of many noisy evaluations is mostly luck. They
        are not played unless `playable`, or if the process must end at once.
        """
        self.kept_step = self.health.restore_best(trainer)
        playable = playable and self.stop_reason != TERMINATED
        if self._start_rewards is None or not (playable or self.kept_step == 0):
            return
        saved = self._start_rewards
        if self.kept_step != 0:
            try:
                saved = self._play_fresh(trainer, trainer.state.global_step, "at the end")
            except RunError as error:  # The model is worth saving all the same.
                self.progress.say(f"The saved model is not compared with the start: {error}")
                return
        self.comparison = Comparison.of(self._start_rewards, saved)
        if self.comparison is not None:
            self.progress.say(str(self.comparison))
