"""The result of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
    """Why the run ended before its last step; the same call resumes it."""
