"""Short training runs: a config, a progress that records, logs to compare, and damage."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ludus.rollout.progress import PhaseProgress
from ludus.train.config import TrainConfig

TRAIN_FIELDS: dict[str, Any] = {"batch_size": 2, "precision": "fp32", "device": "cpu"}


def train_config(**fields: Any) -> TrainConfig:
    return TrainConfig(**{**TRAIN_FIELDS, "epochs": 1.0, **fields})


class RecordingProgress:
    """Records the progress of a run, and may stop it after some step."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.started: tuple[int, int | None] | None = None
        self.lines: list[dict[str, Any]] = []
        self.messages: list[str] = []
        self.phases: list[PhaseProgress] = []
        self._stop_after = stop_after
        self._polls = 0

    def phase(self, progress: PhaseProgress) -> None:
        self.phases.append(progress)

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        self.started = total_steps, resumed_from

    def step(self, line: Mapping[str, Any]) -> None:
        self.lines.append(dict(line))

    def say(self, words: str) -> None:
        self.messages.append(words)

    @property
    def stopping(self) -> str | None:
        self._polls += 1
        return "interrupted" if self._polls == self._stop_after else None


def read_curve(out: Path) -> list[dict[str, Any]]:
    """The log without times."""
    lines = map(json.loads, (out / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def same_curve(one: Any, other: Any, close: Callable[[Any], Any]) -> bool:
    """Whether two logs are equal up to rounding."""
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(a[key] == close(b[key]) for key in a)
        for a, b in zip(one, other, strict=True)
    )
