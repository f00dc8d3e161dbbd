"""A program that learns by trial and is killed at a step, with no chance to tidy up.

python killed.py MODEL OUT STEP
"""

from __future__ import annotations

import sys
from pathlib import Path

from ludus import grpo
from ludus.train import GRPOConfig
from train.grpo.trials import PICK, tried
from train.killed import Killing


def settings() -> GRPOConfig:
    """Groups are replaced, held-out tasks tried, and a step has two batches."""
    return tried(
        steps=5, equal="resample", eval_every=2, eval_episodes=4, batch_size=4,
        checkpoint_every=0.0,
    )  # fmt: skip


if __name__ == "__main__":
    model, out, step = sys.argv[1:]
    grpo(PICK, model, Path(out), settings(), progress=Killing(int(step)))
