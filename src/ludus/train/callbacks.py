"""What happens between two steps: lines are logged, checkpoints fall due, somebody wants to stop.

A callback of the trainer's. What a line looks like on the disk is `ludus.train.output.record`'s business,
on a screen the watch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from ludus.data import training_log
from ludus.rollout.progress import PhaseProgress
from ludus.train.distributed import Distributed
from ludus.train.output.checkpoints import CheckpointState
from ludus.train.progress import TrainProgress

STOP_REASONS = ("interrupted", "terminated", "stopped")
_UNLOGGED_KEYS = frozenset({"total_flos", "eval_runtime", "eval_num_tokens"})
_RATE_SUFFIX = "_per_second"


class RunCallback:
    """Told by the trainer of every step; says when to save and when to end."""

    def __init__(
        self,
        out: Path,
        progress: TrainProgress,
        distributed: Distributed,
        *,
        every: float,
        standing: CheckpointState | None = None,
        begin: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.out, self.progress, self.distributed, self.checkpoint_interval_s = (
            out,
            progress,
            distributed,
            every,
        )
        self.resume_state = standing
        self._on_start = begin
        """Called once nothing stands in the way of the first step, in the first process alone."""
        self.stopped: str | None = None
        self.trainer: Any = None
        """Set when there is one: the two know each other."""
        self._clock = clock
        self._started_at = self._saved_at = self._stepped_at = clock()
        self._checkpoint_due = False
        self._evaluation: PhaseProgress | None = None

    @property
    def episode_bytes(self) -> int:
        """Bytes of episodes on the disk, where some are played."""
        return 0

    @property
    def seconds(self) -> float:
        """Spent on training, before this process too."""
        before = self.resume_state.seconds if self.resume_state else 0.0
        return before + self._clock() - self._started_at

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.resume_state is not None:
            self.trainer.take_up(self.resume_state)
        self._started_at = self._saved_at = self._stepped_at = self._clock()
        with self.distributed.raise_on_all_ranks():
            self.progress.begin(
                state.max_steps, self.resume_state.step if self.resume_state else None
            )
            if self.distributed.is_main:
                self._on_start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._poll(state.global_step)
        if state.global_step >= state.max_steps:
            return
        # What is measured at the end of an epoch belongs before a checkpoint that is made there.
        if not _is_epoch_end(state.epoch):
            self._save_or_stop(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= state.max_steps:
            return
        if _is_epoch_end(state.epoch):
            self._save_or_stop(control)
        elif self.stopped:
            control.should_evaluate = False

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not self.distributed.is_main or not logs or "train_runtime" in logs:
            return
        self.write_log({"step": state.global_step, **_log_line(logs)})

    def start_evaluation(self, rows: int) -> None:
        """The loss on the test rows is about to be measured."""
        phase = f"Measuring the test loss on {rows:,} rows"
        self._evaluation = PhaseProgress(phase, rows, "rows", token_count=0, in_log=True)
        self.progress.phase(self._evaluation)

    def advance_evaluation(self, *, rows: int, tokens: int) -> None:
        """A batch of test rows is done, and one as large in every other process."""
        if (progress := self._evaluation) is None or progress.total is None:
            return
        left = progress.total - progress.done
        progress.advance(
            min(left, rows * self.distributed.world_size), tokens * self.distributed.world_size
        )

    def finish_evaluation(self) -> None:
        self._evaluation = None
        self.progress.phase(PhaseProgress("Training"))

    def write_log(self, line: Mapping[str, Any]) -> None:
        """Write a line down, and show it."""
        line = {**line, "seconds": round(self.seconds, 3)}
        training_log.append_log(self.out, line)
        self.progress.step(line)

    def _poll(self, step: int) -> None:
        wish = self.progress.stopping
        code = (
            0
            if wish is None
            else 1 + STOP_REASONS.index(wish if wish in STOP_REASONS else "stopped")
        )
        now = self._clock()
        took, self._stepped_at = now - self._stepped_at, now
        # Another step like this one would end too late.
        late = (
            self.distributed.is_main and now + took - self._saved_at >= self.checkpoint_interval_s
        )
        due, code = self.distributed.all_reduce_max([int(late), code])
        self._checkpoint_due = self._checkpoint_due or bool(due)
        self.stopped = STOP_REASONS[code - 1] if code else None

    def _save_or_stop(self, control: Any) -> None:
        if self._checkpoint_due or self.stopped:
            control.should_save = True
            self._checkpoint_due, self._saved_at = False, self._clock()
        if self.stopped:
            control.should_training_stop = True


def _log_line(logs: Mapping[str, Any]) -> dict[str, Any]:
    told = {
        name: value
        for name, value in logs.items()
        if name not in _UNLOGGED_KEYS and not name.endswith(_RATE_SUFFIX)
    }
    if (tokens := told.pop("num_tokens", None)) is not None:
        told["tokens"] = int(tokens)
    return told


def _is_epoch_end(epoch: float | None) -> bool:
    return epoch is not None and abs(epoch - round(epoch)) < 1e-9
