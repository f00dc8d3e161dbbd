"""What a tutor and GRPO teach SmolLM2-135M, environment by environment.

    python benchmarks/learning.py [NAME ...] [--seeds 0 1 2] [--stages warm grpo] [--minutes 10]
    python benchmarks/learning.py --list

For each environment and seed: a warm start by SFT on few games of the oracle, from there two rounds
with the oracle as a tutor, and from the warm start GRPO with its defaults and 32 groups (for hard
environments from the tutor's model). Then all models play the same 500 held-out tasks, sampled at
temperature 1 as in training. Every stage is the command that a user types; stages that are finished
are not repeated, so that the same command resumes. The tables come last, and the rewards of
held-out tasks during GRPO are drawn in OUT/curves.png. It needs a GPU; `--stages` without names
runs nothing, and shows what OUT has.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.seed_interval import interval_half_width
else:
    # Scripts import modules of their own folder by bare names.
    from seed_interval import interval_half_width

HELD_OUT_TASKS = 500
INTERRUPT_GRACE_S = 20
EVALUATION_S = 60
"""Time kept for playing the held-out tasks, where the total is limited."""
LAST_EVALUATIONS = 3
STAGES = ("warm", "tutor", "grpo", "eval")
SUMS = {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}


@dataclass(frozen=True)
class Problem:
    """An environment, the size of its warm start, and how long it is trained."""

    name: str
    env: str
    warm_games: int
    max_episode_tokens: int
    steps: int = 100
    warm_epochs: int = 3
    tutor_games: int = 1000
    dataset_config: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    held_out_task: dict[str, Any] = field(default_factory=dict)
    """Arguments of `reset` for held-out tasks alone."""
    from_tutor: bool = False
    """GRPO continues the tutor's model instead of the warm start."""
    oracle: tuple[str, ...] = ()
    """Further options of the oracle's games."""
    grpo: tuple[str, ...] = ()
    """Further options of GRPO."""


PROBLEMS = (
    Problem("chain_sum", "reasoning_gym:chain_sum", 300, 64, dataset_config=SUMS),
    Problem("catch", "catch", 60, 450, warm_epochs=4),
    Problem("guess_number", "guess_number", 15, 256, steps=60, warm_epochs=8),
    Problem("tic_tac_toe", "openspiel:tic_tac_toe", 40, 128, steps=60, warm_epochs=5),
    Problem("nim", "openspiel:nim", 40, 128, steps=60, warm_epochs=5),
    Problem("sudoku", "sudoku", 300, 320, from_tutor=True, tutor_games=4000),
    Problem("spell_backward", "reasoning_gym:spell_backward", 100, 64),
    Problem("letter_counting", "reasoning_gym:letter_counting", 100, 64),
    Problem(
        "wordle", "wordle", 1000, 512, from_tutor=True, tutor_games=20_000,
        oracle=("--set", "working=true"),
        held_out_task={"pool": "test"},
    ),
)  # fmt: skip


class Runner:
    """Runs the stages of one problem with one seed, in a folder of its own."""

    def __init__(
        self, problem: Problem, seed: int, folder: Path, *, stages: Sequence[str], deadline: float
    ) -> None:
        self.problem, self.seed, self.folder, self.stages = problem, seed, folder, stages
        self.minutes: dict[str, float] = {}
        self._deadline = deadline
        folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> dict[str, Any]:
        problem, task = self.problem, self._task_options()
        self._ludus(
            "collect", problem.env, "-n", problem.warm_games, "--seed", self.seed, *problem.oracle,
            *task, "-o", "games", stage="warm",
        )  # fmt: skip
        self._ludus("curate", "games", "-o", "rows", stage="warm")
        self._ludus(
            "train", "sft", "rows", "-m", "smollm2", "--epochs", problem.warm_epochs, "--seed",
            self.seed, "-o", "warm", "--report-to", "none", stage="warm",
        )  # fmt: skip
        self._ludus(
            "train", "tutor", problem.env, "-m", "warm", "--rounds", 2, "--episodes",
            problem.tutor_games, "--seed", self.seed, *problem.oracle, *task, "-o", "tutor",
            "--report-to", "none", stage="tutor",
        )  # fmt: skip
        start = "tutor" if problem.from_tutor and "tutor" in self.stages else "warm"
        self._ludus(
            "train", "grpo", problem.env, "-m", start, "--steps", problem.steps, "--groups", 32,
            "--max-episode-tokens", problem.max_episode_tokens, "--seed", self.seed, *problem.grpo,
            *task, "-o", "grpo", "--report-to", "none", stage="grpo",
        )  # fmt: skip
        trained = (name for name in ("warm", "tutor", "grpo"))
        models = [name for name in trained if (self.folder / name / "config.json").exists()]
        # The first one is what the others are compared with.
        candidates = [*(f"{name}=hf:{name}" for name in models), "base=smollm2"]
        self._ludus(
            "eval", problem.env, *(part for each in candidates for part in ("-c", each)), "-n",
            HELD_OUT_TASKS, "--temperature", 1, "--max-episode-tokens", problem.max_episode_tokens,
            *self._task_options(**problem.held_out_task), "-o", "eval", stage="eval",
        )  # fmt: skip
        return self._read_results()

    def _task_options(self, **changes: Any) -> list[str]:
        problem, options = self.problem, []
        if problem.dataset_config:
            options += ["--dataset-config", json.dumps(problem.dataset_config)]
        if task := {**problem.task, **changes}:
            options += ["--task", json.dumps(task)]
        return options

    def _ludus(self, *arguments: Any, stage: str) -> None:
        """Run a command. It is interrupted at the deadline, and keeps what it has then."""
        command = [sys.executable, "-m", "ludus", *map(str, arguments)]
        started, limit = time.time(), self._deadline - time.time()
        if stage != "eval" and "eval" in self.stages:
            limit -= EVALUATION_S
        if stage not in self.stages or limit <= 0:
            return
        with (self.folder / f"{stage}.log").open("a") as log:
            log.write(f"$ ludus {shlex.join(map(str, arguments))}\n")
            log.flush()
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(INTERRUPT_GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
        spent = (time.time() - started) / 60
        self.minutes[stage] = self.minutes.get(stage, 0.0) + spent
        name = f"{self.problem.name}, seed {self.seed}"
        print(f"{name}: {stage} {spent:.1f} min, exit code {process.poll()}", flush=True)

    def _read_results(self) -> dict[str, Any]:
        path = self.folder / "eval" / "summary.json"
        summary = json.loads(path.read_text()) if path.exists() else {"candidates": []}
        candidates = {each["label"]: each for each in summary["candidates"]}
        record = {
            "problem": self.problem.name, "seed": self.seed, "minutes": self.minutes,
            "candidates": candidates, "curve": read_curve(self.folder / "grpo"),
        }  # fmt: skip
        (self.folder / "result.json").write_text(json.dumps(record))
        return record


def read_curve(run: Path) -> list[tuple[int, float]]:
    """Step and reward of each evaluation on held-out tasks during GRPO."""
    path = run / "log.jsonl"
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [(line["step"], line["eval_reward"]) for line in lines if "eval_reward" in line]


def format_curves(records: Sequence[dict[str, Any]]) -> str:
    """Rewards of the held-out tasks before GRPO, and in its last three evaluations."""
    lines = ["| environment | seed | before | last three | difference | steps |"]
    lines.append("|---|---|---|---|---|---|")
    for record in records:
        if len(curve := record["curve"]) > LAST_EVALUATIONS:
            before = curve[0][1]
            after = fmean(reward for _, reward in curve[-LAST_EVALUATIONS:])
            lines.append(
                f"| {record['problem']} | {record['seed']} | {before:.3f} | {after:.3f} | "
                f"{after - before:+.3f} | {curve[-1][0]} |"
            )
    return "\n".join(lines)


def draw_curves(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a panel for each environment, with a line for each seed."""
    from matplotlib.figure import Figure

    by_problem: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        if record["curve"]:
            by_problem[record["problem"]].append(record)
    if not by_problem:
        return
    figure = Figure(figsize=(4.2 * len(by_problem), 3.2), layout="constrained")
    panels = figure.subplots(1, len(by_problem), sharey=True, squeeze=False)[0]
    for axes, (problem, runs) in zip(panels, by_problem.items(), strict=True):
        for run in runs:
            steps, rewards = zip(*run["curve"], strict=True)
            axes.plot(steps, rewards, marker=".", label=f"seed {run['seed']}")
        axes.set(title=problem, xlabel="step", ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    panels[0].set_ylabel("reward of held-out tasks")
    figure.savefig(path, dpi=140)


def format_table(records: Sequence[dict[str, Any]]) -> str:
    """Success, reward and format of each model, and what GRPO added to the warm start."""
    lines = [
        "| environment | seed | base | warm start | tutor | GRPO | GRPO - warm start | reward | "
        "difference | format | minutes of GRPO |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        by_label = record["candidates"]
        cells = [record["problem"], str(record["seed"])]
        for label in ("base", "warm", "tutor", "grpo"):
            cells.append(_percent(by_label.get(label, {}).get("metrics", {}).get("accuracy")))
        deltas = by_label.get("grpo", {}).get("deltas", {})
        metrics = [by_label.get(label, {}).get("metrics", {}) for label in ("warm", "grpo")]
        cells += [
            _points(deltas.get("accuracy")),
            " -> ".join(_number(each.get("mean_reward")) for each in metrics),
            _points(deltas.get("mean_reward")),
            " -> ".join(_percent(each.get("format_compliance")) for each in metrics),
            f"{record['minutes'].get('grpo', 0):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def format_seeds(records: Sequence[dict[str, Any]]) -> str:
    """What GRPO added to the mean reward of held-out tasks, over seeds: 95 % Student's t."""
    gains: defaultdict[str, list[float]] = defaultdict(list)
    for record in records:
        deltas = record["candidates"].get("grpo", {}).get("deltas", {})
        if delta := deltas.get("mean_reward"):
            gains[record["problem"]].append(100 * delta["value"])
    lines = ["| environment | seeds | reward, in points |", "|---|---|---|"]
    for problem, points in gains.items():
        cell = f"{fmean(points):+.1f}"
        if len(points) > 1:
            half = interval_half_width(points)
            cell += f" ({fmean(points) - half:+.1f} to {fmean(points) + half:+.1f})"
        lines.append(f"| {problem} | {len(points)} | {cell} |")
    return "\n".join(lines)


def _percent(estimate: Any) -> str:
    return "-" if not estimate else f"{100 * estimate['value']:.1f} %"


def _number(estimate: Any) -> str:
    return "-" if not estimate else f"{estimate['value']:.3f}"


def _points(estimate: Any) -> str:
    if not estimate or estimate["low"] is None:
        return "-"
    value, low, high = (100 * estimate[name] for name in ("value", "low", "high"))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [problem.name for problem in PROBLEMS]
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--stages", nargs="*", choices=STAGES, default=list(STAGES))
    parser.add_argument("--jobs", type=int, default=3, help="problems at once")
    parser.add_argument("--minutes", type=float, default=600, help="stop everything after this")
    parser.add_argument("--list", action="store_true", help="print the names, and exit")
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/learning"))
    args = parser.parse_args()
    if args.list:
        print("\n".join(names))
        return
    if unknown := [name for name in args.names if name not in names]:
        parser.error(f"there is no {unknown[0]}; the names are {', '.join(names)}")
    deadline = time.time() + 60 * args.minutes
    runners = [
        Runner(
            problem,
            seed,
            args.out.resolve() / problem.name / str(seed),
            stages=args.stages,
            deadline=deadline,
        )
        for seed in args.seeds
        for problem in PROBLEMS
        if not args.names or problem.name in args.names
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        records = list(pool.map(Runner.run, runners))
    draw_curves(records, args.out / "curves.png")
    print("\n\n".join(table(records) for table in (format_curves, format_table, format_seeds)))


if __name__ == "__main__":
    main()
