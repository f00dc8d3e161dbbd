"""SFT of a small model on oracle episodes: format and accuracy by the number of rows.

    python benchmarks/warm_start.py [--model smollm2] [--rows 2000x2 20000x2 110000x2@5e-4]

The oracle's episodes of reasoning_gym's chain_sum (two or three numbers of two digits) are
collected and curated once. Then, for each number of rows and epochs (and learning rate), the model
is trained on the first rows and plays the same 500 held-out questions as the base model, greedily.
Accuracy is also shown without the questions that occur in the rows. `--data` takes a curated data
set. Each step is a `ludus` command, which is printed; the table is printed after each model.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

ENVIRONMENT = "reasoning_gym:chain_sum"
QUESTIONS = '{"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}'
NUM_HELD_OUT = 500
DEFAULT_LEARNING_RATE = 2e-4


def main() -> None:
    args = _parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    runs = [_parse_run(text) for text in args.rows]
    data = args.data or _collect_and_curate(args.out, max(rows for rows, *_ in runs))
    labels, seconds = [], {}
    for rows, epochs, rate in runs:
        labels.append(label := f"{rows}x{epochs}")
        part = _first_rows(data, rows, args.out / f"data-{label}")
        start = time.perf_counter()
        _run_ludus(
            "train", "sft", part, "--model", args.model, "--epochs", epochs,
            "--batch-size", args.batch_size, "--learning-rate", rate, "--report-to", "none",
            "-o", args.out / label,
        )  # fmt: skip
        seconds[label] = time.perf_counter() - start
        # After each model, in case the next one fails.
        _evaluate(args, data, labels)
        _print_table(args.out, seconds)


def _evaluate(args: argparse.Namespace, data: Path, labels: list[str]) -> None:
    candidates = [f"base=hf:{args.model}", *(f"{each}=hf:{args.out / each}" for each in labels)]
    scores = args.out / "scores"
    for name, exclude in (("all", []), ("unseen", ["--exclude-tasks-in", data])):
        _run_ludus(
            "eval", ENVIRONMENT, *(word for each in candidates for word in ("-c", each)),
            "-n", NUM_HELD_OUT, "--dataset-config", QUESTIONS, "--max-tokens", 64,
            "--concurrency", 256, *exclude, "-o", scores,
        )  # fmt: skip
        shutil.copy(scores / "summary.json", args.out / f"{name}.json")


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", nargs="+", default=["2000x2", "20000x2", "110000x2@5e-4"])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/warm_start"))
    return parser.parse_args()


def _parse_run(text: str) -> tuple[int, int, float]:
    """Rows, epochs and learning rate from a text such as 110000x2@5e-4."""
    size, _, rate = text.partition("@")
    rows, epochs = map(int, size.split("x"))
    return rows, epochs, float(rate or DEFAULT_LEARNING_RATE)


def _collect_and_curate(out: Path, rows: int) -> Path:
    # Small questions repeat: almost two episodes are needed for one unique row.
    _run_ludus(
        "collect", ENVIRONMENT, "-n", 2 * rows, "--dataset-config", QUESTIONS, "-o", out / "oracle"
    )
    _run_ludus("curate", out / "oracle", "--overwrite", "-o", out / "data")
    return out / "data"


def _first_rows(data: Path, rows: int, to: Path) -> Path:
    to.mkdir(exist_ok=True)
    with (data / "train.jsonl").open("rb") as source, (to / "train.jsonl").open("wb") as target:
        target.writelines(islice(source, rows))
    return to


def _run_ludus(*words: object) -> None:
    command = [sys.executable, "-m", "ludus", *map(str, words)]
    print("$ ludus", *command[3:], flush=True)
    if status := subprocess.run(command).returncode:
        sys.exit(status)  # The command has printed the error.


def _print_table(out: Path, seconds: dict[str, float]) -> None:
    print("\n| rows x epochs | training | tokens/s | format | accuracy | unseen questions |")
    print("|---|---|---|---|---|---|")
    overall, unseen = (json.loads((out / f"{name}.json").read_text()) for name in ("all", "unseen"))
    for candidate, unseen_candidate in zip(
        overall["candidates"], unseen["candidates"], strict=True
    ):
        label = candidate["label"]
        stats = _training_stats(out / label)
        cells = [f"{stats['seconds']:.0f} s", f"{stats['tokens_per_second']:,.0f}"] if stats else []
        shares = [candidate["metrics"]["format_compliance"], candidate["metrics"]["accuracy"]]
        shares.append(unseen_candidate["metrics"]["accuracy"])
        print("|", " | ".join([label, *(cells or ["-", "-"]), *map(_format_share, shares)]), "|")
    print(
        "seconds of the commands, with loading and tokenization:",
        {k: round(v) for k, v in seconds.items()},
    )


def _training_stats(folder: Path) -> Any:
    record = folder / "training.json"
    return json.loads(record.read_text())["metrics"] if record.is_file() else None


def _format_share(metric: Any) -> str:
    low, high = metric["low"], metric["high"]
    return f"{metric['value']:.1%} ({low:.1%} to {high:.1%}, n={metric['n']})"


if __name__ == "__main__":
    main()
