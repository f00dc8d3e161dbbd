"""The health of a GRPO run: when it degrades, it goes back to its best model at half the rate.

`diagnose.detectors` decides from the training log; this module acts on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from statistics import fmean
from typing import Any

from ludus.data.paired_rewards import Rewards, is_better
from ludus.data.training_log import LogEntry, step_number
from ludus.diagnose.detectors import DegradationDetector, SignalDetector
from ludus.train.context import GRPOContext
from ludus.train.distributed import Distributed, whole_weights
from ludus.train.grpo.learning_rate import restore_scheduled_lr
from ludus.train.output.checkpoints import BestModel, load_best, read_best, save_best

ROLLBACK_RATE_FACTOR = 0.5
"""Factor of the learning rate at each rollback."""


class Action(IntEnum):
    """What to do about a run; the maximum over all ranks counts."""

    NOTHING = 0
    ROLL_BACK = 1
    STOP = 2


class HealthMonitor:
    """Watches the training log, keeps the best model, and rolls back to it.

    Args:
        rollbacks: How often the run was rolled back before it was resumed.
        past_entries: The log entries before it was resumed; None for a new run.
    """

    def __init__(
        self, context: GRPOContext, *, rollbacks: int = 0, past_entries: Sequence[LogEntry] | None
    ) -> None:
        self.out, self.rollbacks = context.out, rollbacks
        self._config, self._say = context.config, context.progress.say
        resumed_best = None if past_entries is None else read_best(self.out)
        self.best: BestModel | None = resumed_best if self._config.keep == "best" else None
        self._evaluations: dict[int, Rewards] = {}
        """The rewards of held-out tasks by step."""
        self._distributed: Distributed = context.distributed
        self._detector, self._signal = DegradationDetector(), SignalDetector()
        for entry in past_entries or ():
            self._detector.update(entry)
            self._signal.update(entry)
            if "eval_rewards" in entry:
                self._evaluations[step_number(entry)] = entry["eval_rewards"]
            if "rollback_to" in entry:
                self._forget_evaluations(after=entry["rollback_to"])
        self._reason: str | None = None
        self._can_recover = True
        """Whether a rollback may help."""

    def observe(self, entry: LogEntry) -> None:
        """Judge the run by a new entry of the log. Called in the main process."""
        reason, no_signal = self._detector.update(entry), self._signal.update(entry)
        self._reason = self._reason or reason or no_signal
        self._can_recover = self._can_recover and no_signal is None

    def record_held_out(self, trainer: Any, step: int, rewards: Rewards) -> None:
        """Keep the current model if it is better than the kept one. All ranks call it."""
        self._evaluations[step] = rewards
        scored = [reward for reward in rewards if reward is not None]
        if self._config.keep != "best" or not scored:
            return
        if self.best is not None and step != self.best.step:
            steps = sorted(self._evaluations)
            # After a kill, the best model's step may not have been repeated yet.
            if self.best.step not in steps or not is_better(
                [self._evaluations[each] for each in steps],
                steps.index(step), steps.index(self.best.step),
            ):  # fmt: skip
                return
        self.best = BestModel(step, fmean(scored))
        model = trainer.accelerator.unwrap_model(trainer.model)
        with self._distributed.raise_on_all_ranks(), whole_weights(model):
            if self._distributed.is_main:
                save_best(self.out, model, self.best)

    def decide(self) -> Action:
        """What to do before the next step, agreed among all ranks."""
        action = Action.NOTHING
        if self._reason is not None:
            can_roll_back = (
                self._can_recover
                and self.best is not None
                and self.rollbacks < self._config.max_rollbacks
            )
            action = Action.ROLL_BACK if can_roll_back else Action.STOP
        (agreed,) = self._distributed.all_reduce_max([int(action)])
        return Action(agreed)

    def roll_back(self, trainer: Any) -> BestModel:
        """Load the best model and halve the learning rate. All ranks call it."""
        assert self.best is not None
        self.rollbacks += 1
        if self._reason is not None:
            self._say(
                f"Getting worse: {self._reason}. Back to the model after step "
                f"{self.best.step:,} (held-out reward {self.best.reward:.3g}), at half the "
                f"learning rate; rollback {self.rollbacks} of {self._config.max_rollbacks}"
            )
        self._reason = None
        self._detector.restart()
        self._forget_evaluations(after=self.best.step)
        self._load_best(trainer)
        # Moments of gradients of the degraded model would lead the way back there.
        trainer.optimizer.state.clear()
        trainer.rate_factor, trainer.rolled_back_at = self.rate_factor, trainer.state.global_step
        restore_scheduled_lr(trainer.lr_scheduler)
        return self.best

    @property
    def rate_factor(self) -> float:
        """The factor of the scheduled learning rate."""
        return float(ROLLBACK_RATE_FACTOR**self.rollbacks)

    @property
    def verdict(self) -> str | None:
        """What is wrong with the run, if anything."""
        return self._reason

    def restore_best(self, trainer: Any) -> int | None:
        """Load the best model at the end of a run; returns its step, if one was kept."""
        step = trainer.state.global_step
        if self.best is None or self.best.step > step:
            return None
        if self.best.step < step:
            self._load_best(trainer)
            self._say(
                f"Keeping the model after step {self.best.step:,}: held-out reward "
                f"{self.best.reward:.3g}, and no later model was better by more than noise"
            )
        return self.best.step

    def _forget_evaluations(self, *, after: int) -> None:
        """Forget the evaluations of models that were rolled back."""
        kept = {step: each for step, each in self._evaluations.items() if step <= after}
        self._evaluations = kept

    def _load_best(self, trainer: Any) -> None:
        load_best(self.out, trainer.accelerator.unwrap_model(trainer.model))
        # vLLM has the weights of this step, and must not take them for the current ones.
        trainer._last_loaded_step = -1
