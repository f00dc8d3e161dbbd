"""Between two steps of the trainer: log, save a checkpoint when one is due, stop if asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from ludus.data import training_log
from ludus.data.tool_schema import JsonObject
from ludus.train.distributed import Distributed
from ludus.train.output.checkpoints import CheckpointState
from ludus.train.output.record import BucketRecord, Comparison
from ludus.train.result import TrainProgress

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState

TERMINATED, OUT_OF_TIME = "terminated", "out of time"
STOP_REASONS = (OUT_OF_TIME, "interrupted", TERMINATED, "stopped")
EXPORT_S, EXPORT_S_PER_PARAMETER = 5.0, 4e-8
"""An upper bound of the time to write the last checkpoint and the model: 10 s for 135 M."""
_UNLOGGED_KEYS = frozenset({"total_flos", "eval_runtime", "eval_num_tokens"})
_RATE_SUFFIX = "_per_second"


class RunCallback:
    """Handles the trainer's events; see `add_callback`.

    Args:
        checkpoint_every: Seconds between two checkpoints.
        deadline: When the run must have ended, with its model written.
        resume_state: The counters of the checkpoint that the run resumes from.
        write_record: Called by the main process when the trainer has accepted its config.
        clock: Seconds since any fixed moment.
    """

    def __init__(
        self,
        out: Path,
        progress: TrainProgress,
        distributed: Distributed,
        *,
        checkpoint_every: float,
        deadline: float = inf,
        resume_state: CheckpointState | None = None,
        write_record: Callable[[], None] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.out, self.progress, self.distributed = out, progress, distributed
        self.checkpoint_every, self.resume_state = checkpoint_every, resume_state
        self.stop_reason: str | None = None
        """Why the run stops before its last step."""
        self.kept_step: int | None = None
        """The step of the saved model, if not the last one."""
        self.comparison: Comparison | None = None
        """The saved model of GRPO compared with the initial one."""
        self._write_record, self._clock = write_record, clock
        self._started_at = self._saved_at = self._stepped_at = clock()
        self._checkpoint_due = False
        self._deadline, self._parameters = deadline, 0

    def checkpoint_fields(self) -> JsonObject:
        """Fields of `CheckpointState` that only GRPO has."""
        return {}

    @property
    def buckets(self) -> tuple[BucketRecord, ...]:
        """The buckets of a curriculum for the record; empty for methods without one."""
        return ()

    @property
    def seconds(self) -> float:
        """Training time, including that before the run was resumed."""
        before = self.resume_state.seconds if self.resume_state else 0.0
        return before + self._clock() - self._started_at

    @property
    def seconds_to_end(self) -> float:
        """The estimated time that a run needs after its last step, in seconds."""
        return EXPORT_S + EXPORT_S_PER_PARAMETER * self._parameters

    def start_run(self) -> None:
        """Write the record. The main process calls it when the trainer has accepted its config."""
        if self._write_record is not None:
            self._write_record()

    def on_train_begin(
        self, args: object, state: TrainerState, control: object, *, trainer: Trainer, **_: Any
    ) -> None:
        if self.resume_state is not None:
            trainer.restore_state(self.resume_state)
        self._started_at = self._saved_at = self._stepped_at = self._clock()
        if self._deadline < inf:
            self._parameters = sum(each.numel() for each in trainer.model.parameters())
        with self.distributed.raise_on_all_ranks():
            resumed_from = self.resume_state.step if self.resume_state else None
            self.progress.begin(state.max_steps, resumed_from)
            if self.distributed.is_main:
                self.start_run()

    def on_step_end(
        self, args: object, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._poll()
        if state.global_step >= state.max_steps:
            return
        # At the end of an epoch the evaluation comes first, so that the checkpoint includes it.
        if not self._is_epoch_end(state):
            self._save_or_stop(control)

    def on_epoch_end(
        self, args: object, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.global_step >= state.max_steps:
            return
        if self._is_epoch_end(state):
            self._save_or_stop(control)
        elif self.stop_reason:
            control.should_evaluate = False

    def on_log(
        self, args: object, state: TrainerState, control: object, logs: JsonObject, **_: Any
    ) -> None:
        if not self.distributed.is_main or "train_runtime" in logs:
            return
        line = {
            name: value
            for name, value in logs.items()
            if name not in _UNLOGGED_KEYS and not name.endswith(_RATE_SUFFIX)
        }
        if (tokens := line.pop("num_tokens", None)) is not None:
            line["tokens"] = int(tokens)
        self.write_log({"step": state.global_step, **line})

    def write_log(self, line: Mapping[str, object]) -> None:
        """Append a line to `log.jsonl`, and show it."""
        line = {**line, "seconds": round(self.seconds, 3)}
        training_log.append_log(self.out, line)
        self.progress.step(line)

    def _poll(self) -> None:
        """Decide on all ranks together whether to stop, and whether a checkpoint is due."""
        requested, code, now = self.progress.stopping, 0, self._clock()
        step_time, self._stepped_at = now - self._stepped_at, now
        if requested is None and now + step_time + self.seconds_to_end > self._deadline:
            requested = OUT_OF_TIME
        if requested is not None:
            known = requested if requested in STOP_REASONS else "stopped"
            code = 1 + STOP_REASONS.index(known)
        # Due also when another step as long as this one would end too late.
        late = now + step_time - self._saved_at >= self.checkpoint_every
        due, code = self.distributed.all_reduce_max([int(self.distributed.is_main and late), code])
        self._checkpoint_due = self._checkpoint_due or bool(due)
        self.stop_reason = STOP_REASONS[code - 1] if code else None

    def _save_or_stop(self, control: TrainerControl) -> None:
        if self._checkpoint_due or self.stop_reason:
            control.should_save = True
            self._checkpoint_due, self._saved_at = False, self._clock()
        if self.stop_reason:
            control.should_training_stop = True

    @staticmethod
    def _is_epoch_end(state: TrainerState) -> bool:
        return state.epoch is not None and abs(state.epoch - round(state.epoch)) < 1e-9


def add_callback(trainer: Trainer, callback: RunCallback, events: Sequence[str]) -> None:
    """Register the callback for these events and for `on_train_begin`, and drop TRL's printer.

    `on_train_begin` runs before every other callback's: experiment trackers write into the output
    folder, which it may clear. Each event is passed the trainer.
    """
    from transformers import PrinterCallback, TrainerCallback

    def handlers(*names: str) -> dict[str, Any]:
        return {
            name: staticmethod(partial(getattr(callback, name), trainer=trainer)) for name in names
        }

    start = type("LudusStartCallback", (TrainerCallback,), handlers("on_train_begin"))
    rest = type("LudusCallback", (TrainerCallback,), handlers(*events))
    trainer.remove_callback(PrinterCallback)
    trainer.callback_handler.callbacks.insert(0, start())
    trainer.add_callback(rest())
    trainer.callback = callback
