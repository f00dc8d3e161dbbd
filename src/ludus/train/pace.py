"""What happens between two steps: lines are logged, checkpoints fall due, somebody wants to stop.

A callback of the trainer's. What a line looks like on the disk is `ludus.train.record`'s business,
on a screen the watch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from ludus.rollout.progress import PhaseProgress
from ludus.train import record
from ludus.train.checkpoints import Standing
from ludus.train.watch import Watch
from ludus.train.world import World

REASONS = ("interrupted", "terminated", "stopped")
_UNTOLD = frozenset({"total_flos", "eval_runtime", "eval_num_tokens"})
_RATES = "_per_second"


class Pace:
    """Told by the trainer of every step; says when to save and when to end."""

    def __init__(
        self,
        out: Path,
        watch: Watch,
        world: World,
        *,
        every: float,
        standing: Standing | None = None,
        begin: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.out, self.watch, self.world, self.every = out, watch, world, every
        self.standing = standing
        self._begin = begin
        """Called once nothing stands in the way of the first step, in the first process alone."""
        self.stopped: str | None = None
        self.trainer: Any = None
        """Set when there is one: the two know each other."""
        self._clock = clock
        self._started_at = self._saved = self._stepped = clock()
        self._due = False
        self._test_loss: PhaseProgress | None = None

    @property
    def episodes(self) -> int:
        """Bytes of episodes on the disk, where some are played."""
        return 0

    @property
    def seconds(self) -> float:
        """Spent on training, before this process too."""
        before = self.standing.seconds if self.standing else 0.0
        return before + self._clock() - self._started_at

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.standing is not None:
            self.trainer.take_up(self.standing)
        self._started_at = self._saved = self._stepped = self._clock()
        with self.world.together():
            self.watch.begin(state.max_steps, self.standing.step if self.standing else None)
            if self.world.main:
                self._begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._ask(state.global_step)
        if state.global_step >= state.max_steps:
            return
        # What is measured at the end of an epoch belongs before a checkpoint that is made there.
        if not _ends_epoch(state.epoch):
            self._decide(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= state.max_steps:
            return
        if _ends_epoch(state.epoch):
            self._decide(control)
        elif self.stopped:
            control.should_evaluate = False

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not self.world.main or not logs or "train_runtime" in logs:
            return
        self.told({"step": state.global_step, **_line(logs)})

    def begin_test_loss(self, rows: int) -> None:
        """The loss on the test rows is about to be measured."""
        phase = f"Measuring the test loss on {rows:,} rows"
        self._test_loss = PhaseProgress(phase, rows, "rows", token_count=0, in_log=True)
        self.watch.phase(self._test_loss)

    def measured(self, *, rows: int, tokens: int) -> None:
        """A batch of test rows is done, and one as large in every other process."""
        if (progress := self._test_loss) is None or progress.total is None:
            return
        left = progress.total - progress.done
        progress.advance(min(left, rows * self.world.size), tokens * self.world.size)

    def end_test_loss(self) -> None:
        self._test_loss = None
        self.watch.phase(PhaseProgress("Training"))

    def told(self, line: Mapping[str, Any]) -> None:
        """Write a line down, and show it."""
        line = {**line, "seconds": round(self.seconds, 3)}
        record.append(self.out, line)
        self.watch.step(line)

    def _ask(self, step: int) -> None:
        wish = self.watch.stopping
        code = 0 if wish is None else 1 + REASONS.index(wish if wish in REASONS else "stopped")
        now = self._clock()
        took, self._stepped = now - self._stepped, now
        # Another step like this one would end too late.
        late = self.world.main and now + took - self._saved >= self.every
        due, code = self.world.highest([int(late), code])
        self._due = self._due or bool(due)
        self.stopped = REASONS[code - 1] if code else None

    def _decide(self, control: Any) -> None:
        if self._due or self.stopped:
            control.should_save = True
            self._due, self._saved = False, self._clock()
        if self.stopped:
            control.should_training_stop = True


def _line(logs: Mapping[str, Any]) -> dict[str, Any]:
    told = {
        name: value
        for name, value in logs.items()
        if name not in _UNTOLD and not name.endswith(_RATES)
    }
    if (tokens := told.pop("num_tokens", None)) is not None:
        told["tokens"] = int(tokens)
    return told


def _ends_epoch(epoch: float | None) -> bool:
    return epoch is not None and abs(epoch - round(epoch)) < 1e-9
