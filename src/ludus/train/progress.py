"""Who is told how training goes, and who may end it.

A program shows it, a notebook may not care. What is kept on the disk is `ludus.train.output.record`'s
business and does not pass through here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ludus.rollout.progress import PhaseProgress


class TrainProgress(Protocol):
    """Told how training goes, and asked after each step whether to stop.

    Where several processes train together, every one's is told of the beginning and asked; steps
    are told to the first one's alone.
    """

    def phase(self, progress: PhaseProgress) -> None:
        """Another phase begins; its counts are filled in while it lasts."""

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        """Training starts: how many steps it will have been, and after which one it goes on."""

    def step(self, line: Mapping[str, Any]) -> None:
        """A line that was logged: `step`, `loss`, `learning_rate`, ..., or `eval_loss`."""

    def say(self, words: str) -> None:
        """What is being done, or something worth knowing; one line."""

    @property
    def stopping(self) -> str | None:
        """Why to stop after this step ("interrupted", "terminated"); None: go on."""


class NoProgress:
    """Nobody looks, and nobody stops it."""

    def phase(self, progress: PhaseProgress) -> None: ...

    def begin(self, total_steps: int, resumed_from: int | None) -> None: ...

    def step(self, line: Mapping[str, Any]) -> None: ...

    def say(self, words: str) -> None: ...

    @property
    def stopping(self) -> str | None:
        return None
