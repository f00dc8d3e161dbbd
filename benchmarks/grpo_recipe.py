"""The recipe on a model that can call already: held-out accuracy before and after GRPO.

    python benchmarks/grpo_recipe.py SFT_MODEL [--steps 150] [--groups 256 --group-size 4]

The model plays 500 held-out questions of reasoning_gym's chain_sum (two or three numbers of two
digits), greedily; then it is trained on other ones by GRPO, and plays the same 500 again. Shown are
the change of the reward in training, between the first steps and the last, with its interval
(`ludus diagnose`), and the accuracy before and after. `--data` takes what the model was taught on:
questions that stand in it word for word then do not count. Each step is the `ludus` command that is
printed, and what is done already in `--out` is not done again.
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
    given = _arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    trained = given.out / "grpo"
    seconds: dict[str, float] = {}
    # Before it is trained, so that what is known is shown whatever becomes of the rest.
    seconds["eval before"] = _evaluated(given, [f"before=hf:{given.model}"])
    _table(given.out)
    seconds["train"] = _ludus(
        "train", "grpo", ENVIRONMENT, "--model", given.model, "--dataset-config", QUESTIONS,
        "--steps", given.steps, "--groups", given.groups, "--group-size", given.group_size,
        "--max-episode-tokens", given.max_episode_tokens, *_asked(given), "--seed", given.seed,
        "--report-to", "none", "-o", trained,
    )  # fmt: skip
    _ludus("diagnose", trained)
    (given.out / "diagnosis.json").write_text(_said("diagnose", trained, "--json"))
    candidates = [f"before=hf:{given.model}", f"after=hf:{trained}"]
    seconds["eval both"] = _evaluated(given, candidates)
    _table(given.out)
    print("whole commands, with loading:", {name: round(took) for name, took in seconds.items()})


def _arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("model")
    asked.add_argument("--steps", type=int, default=150)
    asked.add_argument("--groups", type=int, default=256)
    asked.add_argument("--group-size", type=int, default=4)
    asked.add_argument("--batch-size", type=int, help="rows that are trained on at once")
    asked.add_argument("--max-episode-tokens", type=int, default=128)
    asked.add_argument("--learning-rate", type=float)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--held-out", type=int, default=500)
    asked.add_argument("--data", type=Path)
    asked.add_argument("--out", type=Path, default=Path("runs/grpo_recipe"))
    return asked.parse_args()


def _asked(given: argparse.Namespace) -> list[object]:
    """What is left to Ludus where nothing is said."""
    options = {"--learning-rate": given.learning_rate, "--batch-size": given.batch_size}
    return [word for pair in options.items() if pair[1] is not None for word in pair]


def _evaluated(given: argparse.Namespace, candidates: list[str]) -> float:
    who = [word for candidate in candidates for word in ("-c", candidate)]
    seen = ["--exclude-tasks-in", given.data] if given.data else []
    took = _ludus(
        "eval", ENVIRONMENT, *who, "-n", given.held_out, "--dataset-config", QUESTIONS,
        "--max-tokens", 64, "--concurrency", 256, *seen, "-o", given.out / "scores",
    )  # fmt: skip
    shutil.copy(given.out / "scores" / "summary.json", given.out / "summary.json")
    return took


def _ludus(*words: object) -> float:
    command = [sys.executable, "-m", "ludus", *map(str, words)]
    print("$ ludus", *command[3:], flush=True)
    started = time.perf_counter()
    if status := subprocess.run(command).returncode:
        sys.exit(status)  # It has said why.
    return time.perf_counter() - started


def _said(*words: object) -> str:
    command = [sys.executable, "-m", "ludus", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _table(out: Path) -> None:
    print("\n| | before | after | change |")
    print("|---|---|---|---|")
    file = out / "diagnosis.json"
    if file.is_file() and (reward := json.loads(file.read_text())["reward"]):
        ends = [f"{reward[name]:.3f}" for name in ("initial", "final")]
        print("| reward in training |", " | ".join([*ends, _change(reward)]), "|")
    candidates = json.loads((out / "summary.json").read_text())["candidates"]
    for name, key in (("held-out accuracy", "accuracy"), ("format", "format_compliance")):
        shares = [_share(each["metrics"][key]) for each in candidates]
        change = _points(candidates[1]["deltas"].get(key)) if len(candidates) > 1 else "-"
        print(f"| {name} |", " | ".join([*shares, "-"][:2]), f"| {change} |")
    print(flush=True)


def _change(reward: Any) -> str:
    low, high = reward["interval"] or (None, None)
    return _points({"value": reward["delta"], "low": low, "high": high})


def _points(change: Any) -> str:
    """+12.3 points (+8.1 to +16.4)."""
    if change is None:
        return "-"
    told = f"{100 * change['value']:+.1f} points"
    if change["low"] is None:
        return told
    return f"{told} ({100 * change['low']:+.1f} to {100 * change['high']:+.1f})"


def _share(metric: Any) -> str:
    between = "" if metric["low"] is None else f"{metric['low']:.1%} to {metric['high']:.1%}, "
    return f"{metric['value']:.1%} ({between}n={metric['n']})"


if __name__ == "__main__":
    main()
