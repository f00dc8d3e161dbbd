"""What the settings of GRPO do on a small problem: one setting is changed at a time.

    python benchmarks/grpo_ablation.py [NAME ...] [--seeds 0 1 2] [--steps 100]

A tiny model picks one of five letters. It has learned from an oracle that prefers a letter with
half of the reward; the letter with all of it is picked in one attempt out of sixteen. Imitation
gives 0.5, exploration 1. For each setting, over all seeds: the first step at which the mean reward
of ten steps is 0.7 (none: some run does not get there), the mean reward of the last ten steps with
Student's t interval, and the entropy there. Runs on a CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from ludus import CollectConfig, grpo
from ludus.agents.oracle import OracleAgent
from ludus.data.training_log import read_log
from ludus.train import GRPOConfig

if TYPE_CHECKING:
    from benchmarks.grpo_runs import TEMPTING, train_tiny_model
    from benchmarks.seed_interval import interval_half_width
else:
    # Scripts import modules of their own folder by bare names.
    from grpo_runs import TEMPTING, train_tiny_model
    from seed_interval import interval_half_width

WINDOW, GOAL = 10, 0.7
DEFAULTS: Mapping[str, Any] = {
    "groups": 8, "group_size": 4, "max_episode_tokens": 64, "precision": "fp32", "device": "cpu",
    "learning_rate": 1e-3, "eval_every": 0, "report_to": "none",
}  # fmt: skip
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "no target for the divergence": {"target_kl": 0},
    "target 0.2": {"target_kl": 0.2},
    "a tenth of the rate": {"learning_rate": 1e-4},
    "4 groups of 8": {"groups": 4, "group_size": 8},
    "2 groups of 16": {"groups": 2, "group_size": 16},
    "temperature 0.8": {"temperature": 0.8},
    "temperature 1.2": {"temperature": 1.2},
    "advantages not divided": {"overrides": {"scale_rewards": "none"}},
    "advantages divided by the batch's deviation": {"overrides": {"scale_rewards": "batch"}},
    "clip-higher 0.28": {"overrides": {"epsilon_high": 0.28}},
    "KL penalty 0.04": {"beta": 0.04},
    "no importance correction": {"importance_correction": False},
    "loss dr_grpo": {"overrides": {"loss_type": "dr_grpo"}},
}


class RunResult(NamedTuple):
    """What a run has learned."""

    step: int | None
    """The first one at which the mean of ten rewards is `GOAL`."""
    reward: float
    entropy: float


def run_setting(model: str, out: Path, settings: Mapping[str, Any]) -> RunResult:
    grpo(TEMPTING, model, out, GRPOConfig(**{**DEFAULTS, **settings}))
    lines = [line for line in read_log(out) if "reward" in line]
    rewards = [line["reward"] for line in lines]
    means = [fmean(rewards[end - WINDOW : end]) for end in range(WINDOW, len(rewards) + 1)]
    step = next((WINDOW + index for index, mean in enumerate(means) if mean >= GOAL), None)
    return RunResult(step, means[-1], fmean(line["entropy"] for line in lines[-WINDOW:]))


def format_row(name: str, runs: Sequence[RunResult]) -> str:
    steps = [run.step for run in runs if run.step is not None]
    step = f"{fmean(steps):.0f}" if len(steps) == len(runs) else "none"
    rewards = [run.reward for run in runs]
    mean, interval = fmean(rewards), ""
    if len(runs) > 1:
        half = interval_half_width(rewards)
        interval = f" ({mean - half:.2f} to {mean + half:.2f})"
    entropy = fmean(run.entropy for run in runs)
    return f"| {name} | {step} | {mean:.2f}{interval} | {entropy:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="; ".join(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in SETTINGS]:
        parser.error(f"there is no setting {unknown[0]!r}; there are {', '.join(SETTINGS)}")
    print("| setting | step | reward | entropy |\n|---|---:|---|---:|", flush=True)
    with TemporaryDirectory() as folder:
        taught = CollectConfig(agent=OracleAgent(), explore=0.3, num_episodes=160)
        model = train_tiny_model(Path(folder), TEMPTING, taught, epochs=10)
        for name in args.names or SETTINGS:
            runs = []
            for seed in args.seeds:
                settings = {"steps": args.steps, "seed": seed, **SETTINGS[name]}
                runs.append(run_setting(model, Path(folder) / name / str(seed), settings))
            print(format_row(name, runs), flush=True)


if __name__ == "__main__":
    main()
