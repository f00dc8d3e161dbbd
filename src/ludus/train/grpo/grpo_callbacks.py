"""What happens between two steps of GRPO: besides what every method does, the time is taken, the
model is tried on held-out tasks, and it is asked whether there is anything left to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

from ludus.data import training_log
from ludus.data.training_log import EPISODES_FILE
from ludus.diagnose.saturation import SaturationDetector
from ludus.train.callbacks import RunCallback
from ludus.train.distributed import Distributed
from ludus.train.output.checkpoints import CheckpointState
from ludus.train.progress import TrainProgress

EvaluateHeldOut = Callable[[Any], Mapping[str, float]]
"""Plays held-out tasks with the trainer's model, and says how that went."""
_UNLOGGED_METRICS = frozenset({"step_time", "frac_reward_zero_std", "epoch"})
_UNLOGGED_PREFIXES = ("completions/", "clip_ratio/", "tools/", "sampling/", "profiling/")


class GRPOCallbacks(RunCallback):
    """Told by the trainer of every step."""

    def __init__(
        self,
        out: Path,
        progress: TrainProgress,
        distributed: Distributed,
        *,
        num_iterations: int = 1,
        evaluate_held_out: EvaluateHeldOut | None = None,
        eval_every: int | None = None,
        early_stop: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(out, progress, distributed, **more)
        self._num_iterations = num_iterations
        """Steps that learn from the same episodes: a checkpoint in between could not go on."""
        self._evaluate_held_out, self._eval_every = evaluate_held_out, eval_every
        self._saturation = _replay_saturation(out, self.resume_state) if early_stop else None
        self.saturation_reason: str | None = None
        """Why there is nothing left to learn, if so."""
        self._step_began = perf_counter()
        self._episode_bytes = self.resume_state.episodes if self.resume_state else 0

    @property
    def episode_bytes(self) -> int:
        """Those of whole steps: what comes after is played again when the run goes on."""
        return self._episode_bytes

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._step_began = perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, *, trainer: Any, **_: Any) -> None:
        self._record_step_time(trainer, perf_counter() - self._step_began)
        if self.distributed.is_main:
            self._episode_bytes = (self.out / EPISODES_FILE).stat().st_size
        step = state.global_step
        ends = self._should_stop_early(step)
        self._poll()
        last = ends or step >= state.max_steps
        if self._eval_every and not self.stop_reason and (last or step % self._eval_every == 0):
            self._log_held_out(step, trainer)
        if step % self._num_iterations == 0 and step < state.max_steps:
            self._save_or_stop(control)
        if ends:
            control.should_training_stop = True

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, trainer: Any, **_: Any
    ) -> None:
        super().on_train_begin(args, state, control, trainer=trainer)
        if self._eval_every and self.resume_state is None:
            self._log_held_out(0, trainer)

    def _log_held_out(self, step: int, trainer: Any) -> None:
        """Say how the model does on held-out tasks, as it is after so many steps."""
        assert self._evaluate_held_out is not None
        found = self._evaluate_held_out(trainer)
        if self.distributed.is_main:
            self.write_log({"step": step, **found})

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tasks have no epochs."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not self.distributed.is_main or not logs or "train_runtime" in logs:
            return
        line = {"step": state.global_step, **to_log_line(logs)}
        self.write_log(line)
        if self._saturation is not None and self.saturation_reason is None:
            self.saturation_reason = self._saturation.update(line)
            if self.saturation_reason:
                self.progress.say(f"Nothing is left to learn: {self.saturation_reason}")

    def _record_step_time(self, trainer: Any, seconds: float) -> None:
        metrics = trainer._metrics["train"]
        played = metrics["time/rollout"][-1] if metrics["time/rollout"] else 0.0
        metrics["time/step"].append(seconds)
        metrics["time/train"].append(max(0.0, seconds - played))

    def _should_stop_early(self, step: int) -> bool:
        """Whether all stop here, because the first has seen that nothing is left to learn."""
        if self._saturation is None:
            return False
        (done,) = self.distributed.all_reduce_max([int(self.saturation_reason is not None)])
        return bool(done) and step % self._num_iterations == 0


def _replay_saturation(out: Path, standing: CheckpointState | None) -> SaturationDetector:
    """Knows what was logged before a run was stopped."""
    judge, step = SaturationDetector(), standing.step if standing else 0
    for line in training_log.read_log(out):
        if line.get("step", 0) <= step:
            judge.update(line)
    return judge


def to_log_line(logs: Mapping[str, Any]) -> dict[str, Any]:
    """TRL's figures by our names; what is no number is left out."""
    found = {
        name: value
        for name, value in logs.items()
        if name not in _UNLOGGED_METRICS
        and not name.startswith(_UNLOGGED_PREFIXES)
        and _is_finite_number(value)
    }
    if (tokens := found.pop("num_tokens", None)) is not None:
        found["tokens"] = int(tokens)
    # What was asked for is how good the model is; what it was trained on was chosen.
    for name in ("reward", "reward_std"):
        if (asked := found.pop(f"asked/{name}", None)) is not None:
            found[f"{name}_trained"], found[name] = found[name], asked
    return found


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(value)
