"""A program that trains by GRPO and is killed with SIGKILL at a step.

python killed_run.py MODEL OUT STEP
"""

from __future__ import annotations

import sys
from pathlib import Path

from ludus import grpo
from ludus.train import GRPOConfig
from train.grpo.toy_environments import PICK, small_config
from train.killed_run import KillingProgress


def config() -> GRPOConfig:
    """With held-out evaluation, and two batches per step."""
    return small_config(
        steps=5, eval_every=2, eval_episodes=4, batch_size=4,
        checkpoint_every=0.0,
    )  # fmt: skip


if __name__ == "__main__":
    model, out, step = sys.argv[1:]
    grpo(PICK, model, Path(out), config(), progress=KillingProgress(int(step)))
