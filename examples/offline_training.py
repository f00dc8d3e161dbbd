"""Offline training on rollouts of NeMo Gym: filter, SFT, DPO pairs, and a comparison.

    python examples/offline_training.py results/rollouts.jsonl --model Qwen/Qwen2.5-1.5B-Instruct

Without a file, rollouts are made first: solved and random attempts at the same tasks, in NeMo Gym's
format.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import ludus
from ludus.curation.formats.run_import import import_files

ENVIRONMENT = "catch"


def read_options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description="SFT and DPO on rollouts.")
    options.add_argument("rollouts", type=Path, nargs="?", help="rollouts.jsonl of NeMo Gym")
    options.add_argument("--environment", default=ENVIRONMENT, help="to compare the models on")
    options.add_argument("--model", default="smollm2")
    options.add_argument("--min-reward", type=float, default=0.8)
    options.add_argument("--epochs", type=float, default=3)
    options.add_argument("--eval-episodes", type=int, default=50)
    options.add_argument("--out", type=Path, default=Path("offline"))
    return options.parse_args()


async def make_rollouts(out: Path) -> Path:
    """Two attempts at each task, one solved and one random, as NeMo Gym would have written them."""
    runs = []
    for name in ("oracle", "random"):
        agent = None if name == "oracle" else ludus.agent(name)
        config = ludus.CollectConfig(num_episodes=40, agent=agent)
        runs.append((await ludus.collect(ENVIRONMENT, out / name, config)).folder)
    ludus.curate(runs, out / "rollouts", ludus.CurateConfig(to="nemo-gym"))
    return out / "rollouts" / "train.jsonl"


async def main(given: argparse.Namespace) -> None:
    # Before you begin: rollouts.
    rollouts = given.rollouts or await make_rollouts(given.out)
    run = given.out / "run"
    if not run.exists():
        report = import_files("nemo-gym", [rollouts], run)
        print(f"{report.episodes} episodes from {rollouts}")

    # 1. Filter high-quality rollouts. 2. Convert them to TRL's format.
    config = ludus.CurateConfig(to="sft", min_reward=given.min_reward)
    rows = ludus.curate(run, given.out / "sft-data", config)
    print(f"{rows.rows['train']} rows; left out: {rows.left_out}")

    # 3. Configure and 4. run training.
    training = ludus.TrainConfig(epochs=given.epochs, batch_size=4, report_to="none")
    with ludus.training_progress() as progress:
        sft = ludus.sft(
            given.out / "sft-data", given.model, given.out / "sft", training, progress=progress
        )

    # DPO: attempts at one task whose rewards differ by 0.1 or more.
    pairs = ludus.CurateConfig(to="dpo", min_margin=0.1)
    ludus.curate(run, given.out / "dpo-data", pairs)
    preferences = ludus.TrainConfig(batch_size=4, report_to="none")
    with ludus.training_progress() as progress:
        dpo = ludus.dpo(
            given.out / "dpo-data", sft.folder, given.out / "dpo", preferences, progress=progress
        )

    # 5. Validate: all models on the same held-out tasks.
    candidates = [f"base={given.model}", f"sft={sft.folder}", f"dpo={dpo.folder}"]
    config = ludus.EvalConfig(num_episodes=given.eval_episodes, max_tokens=32)
    result = await ludus.evaluate(given.environment, candidates, given.out / "eval", config)
    for score in result.scores:
        print(score.label, {name: estimate.value for name, estimate in score.metrics.items()})


if __name__ == "__main__":
    asyncio.run(main(read_options()))
