"""A program that trains, and kills itself at a step.

python killed_run.py DATA MODEL OUT STEP CASE
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ludus import sft
from ludus.train import Lora, TrainConfig
from train.short_runs import RecordingProgress, train_config

CASES: dict[str, TrainConfig] = {
    # Killed between two log lines, which sum over three steps; with a test split.
    "whole": train_config(epochs=2, learning_rate=1e-2, overrides={"logging_steps": "3"}),
    "adapter": train_config(
        epochs=4,
        batch_size=1,
        max_length=700,
        lora=Lora(rank=4, dropout=0.3),
        learning_rate=1e-2,
    ),
}


def config(case: str) -> TrainConfig:
    return replace(CASES[case], checkpoint_every=0.0)


class KillingProgress(RecordingProgress):
    """Kills its process when a step is logged."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def step(self, line: Mapping[str, Any]) -> None:
        if line["step"] >= self._at:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    data, model, out, step, case = sys.argv[1:]
    sft(data, model, Path(out), config(case), progress=KillingProgress(int(step)))
