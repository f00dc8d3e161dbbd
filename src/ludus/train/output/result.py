"""What a training run tells who called for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What came of a run."""

    folder: Path
    steps: int
    loss: float | None
    """The last that was logged."""
    seconds: float
    tokens: int
    resumed_from: int | None = None
    stopped: str | None = None
    """Why it ended before its last step; the same call goes on."""
