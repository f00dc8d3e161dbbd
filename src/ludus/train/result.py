"""The interface for showing the progress of training and for stopping it, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ludus.rollout.progress import PhaseProgress


class TrainProgress(Protocol):
    """Receives the progress of a run, and is asked after each step whether to stop.

    In distributed training every rank has one; `step` is called on the main process only.
    """

    def phase(self, progress: PhaseProgress) -> None:
        """A phase begins; its counts are updated while it lasts."""

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        """Training begins: the total number of steps, and the step that it resumes after."""

    def step(self, line: Mapping[str, object]) -> None:
        """A line was logged: `step`, `loss`, `learning_rate`, ..., or `eval_loss`."""

    def say(self, words: str) -> None:
        """A message for the user; one line."""

    @property
    def stopping(self) -> str | None:
        """Why to stop after this step ("interrupted" or "terminated"); None to continue."""


class NoProgress:
    """Shows nothing and never stops."""

    def phase(self, progress: PhaseProgress) -> None: ...

    def begin(self, total_steps: int, resumed_from: int | None) -> None: ...

    def step(self, line: Mapping[str, object]) -> None: ...

    def say(self, words: str) -> None: ...

    @property
    def stopping(self) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What `sft`, `dpo` and `grpo` return."""

    folder: Path
    steps: int
    loss: float | None
    """The last logged loss."""
    seconds: float
    tokens: int
    resumed_from: int | None = None
    stopped: str | None = None
    """Why the run was stopped before its last step; the same call resumes it."""

    @property
    def has_model(self) -> bool:
        """Whether a model was written. A run that was stopped after its first step has one, too."""
        return any(self.folder.glob("*.safetensors"))
