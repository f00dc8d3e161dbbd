"""GRPO on a model that can already call tools: held-out accuracy before and after.

    python benchmarks/grpo_recipe.py SFT_MODEL [--steps 150] [--groups 256 --group-size 4]

The model plays 500 held-out questions of reasoning_gym's chain_sum (two or three numbers of two
digits), greedily; then it is trained on other ones by GRPO, and plays the same 500 again. Shown are
the change of the training reward from the first to the last steps with its interval (`ludus
diagnose`), and the accuracy before and after. `--data` takes the SFT data of the model, whose
questions are then excluded. Each step is a `ludus` command, which is printed; steps whose result is
already in `--out` are not repeated.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ENVIRONMENT = "reasoning_gym:chain_sum"
QUESTIONS = '{"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}'


def main() -> None:
    args = _parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    trained_model = args.out / "grpo"
    seconds: dict[str, float] = {}
    # Evaluated and shown first, in case training fails.
    seconds["eval before"] = _evaluate(args, [f"before=hf:{args.model}"])
    _print_table(args.out)
    seconds["train"] = _run_ludus(
        "train", "grpo", ENVIRONMENT, "--model", args.model, "--dataset-config", QUESTIONS,
        "--steps", args.steps, "--groups", args.groups, "--group-size", args.group_size,
        "--max-episode-tokens", args.max_episode_tokens, *_optional_flags(args),
        "--seed", args.seed,
        "--report-to", "none", "-o", trained_model,
    )  # fmt: skip
    _run_ludus("diagnose", trained_model)
    (args.out / "diagnosis.json").write_text(_ludus_output("diagnose", trained_model, "--json"))
    candidates = [f"before=hf:{args.model}", f"after=hf:{trained_model}"]
    seconds["eval both"] = _evaluate(args, candidates)
    _print_table(args.out)
    print("seconds of the commands, with loading:", {k: round(v) for k, v in seconds.items()})


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--groups", type=int, default=256)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--batch-size", type=int, help="rows per forward pass")
    parser.add_argument("--max-episode-tokens", type=int, default=128)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/grpo_recipe"))
    return parser.parse_args()


def _optional_flags(args: argparse.Namespace) -> list[object]:
    """Options that have a default in Ludus if they are not given."""
    options = {"--learning-rate": args.learning_rate, "--batch-size": args.batch_size}
    return [word for pair in options.items() if pair[1] is not None for word in pair]


def _evaluate(args: argparse.Namespace, candidates: list[str]) -> float:
    candidate_flags = [word for candidate in candidates for word in ("-c", candidate)]
    exclude = ["--exclude-tasks-in", args.data] if args.data else []
    seconds = _run_ludus(
        "eval", ENVIRONMENT, *candidate_flags, "-n", args.held_out, "--dataset-config", QUESTIONS,
        "--max-tokens", 64, "--concurrency", 256, *exclude, "-o", args.out / "scores",
    )  # fmt: skip
    shutil.copy(args.out / "scores" / "summary.json", args.out / "summary.json")
    return seconds


def _run_ludus(*words: object) -> float:
    command = [sys.executable, "-m", "ludus", *map(str, words)]
    print("$ ludus", *command[3:], flush=True)
    start = time.perf_counter()
    if status := subprocess.run(command).returncode:
        sys.exit(status)  # The command has printed the error.
    return time.perf_counter() - start


def _ludus_output(*words: object) -> str:
    command = [sys.executable, "-m", "ludus", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _print_table(out: Path) -> None:
    print("\n| | before | after | change |")
    print("|---|---|---|---|")
    file = out / "diagnosis.json"
    if file.is_file() and (reward := json.loads(file.read_text())["reward"]):
        ends = [f"{reward[name]:.3f}" for name in ("initial", "final")]
        print("| reward in training |", " | ".join([*ends, _format_reward_change(reward)]), "|")
    candidates = json.loads((out / "summary.json").read_text())["candidates"]
    for name, key in (("held-out accuracy", "accuracy"), ("format", "format_compliance")):
        shares = [_format_share(each["metrics"][key]) for each in candidates]
        change = _format_points(candidates[1]["deltas"].get(key)) if len(candidates) > 1 else "-"
        print(f"| {name} |", " | ".join([*shares, "-"][:2]), f"| {change} |")
    print(flush=True)


def _format_reward_change(reward: Any) -> str:
    low, high = reward["interval"] or (None, None)
    return _format_points({"value": reward["delta"], "low": low, "high": high})


def _format_points(change: Any) -> str:
    """A change in percentage points, such as +12.3 points (+8.1 to +16.4)."""
    if change is None:
        return "-"
    points = f"{100 * change['value']:+.1f} points"
    if change["low"] is None:
        return points
    return f"{points} ({100 * change['low']:+.1f} to {100 * change['high']:+.1f})"


def _format_share(metric: Any) -> str:
    interval = "" if metric["low"] is None else f"{metric['low']:.1%} to {metric['high']:.1%}, "
    return f"{metric['value']:.1%} ({interval}n={metric['n']})"


if __name__ == "__main__":
    main()
