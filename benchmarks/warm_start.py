"""How far oracle episodes alone take a small model: format and accuracy by the number of rows.

    python benchmarks/warm_start.py [--model smollm2] [--rows 2000x2 20000x2 110000x2@5e-4]

The oracle's episodes of reasoning_gym's chain_sum (two or three numbers of two digits) are
collected and curated once; then, for each number of rows and epochs (and rate), the model is
trained on the first so many rows and plays the same 500 held-out questions as the base, greedily.
Questions that stand word for word among the rows are told apart. `--data` takes a data set that is
curated already. Each step is the `ludus` command that is printed, and the table grows with each.
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
HELD_OUT = 500
RATE = 2e-4


def main() -> None:
    given = _arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    runs = [_run(text) for text in given.rows]
    data = given.data or _curated(given.out, max(rows for rows, *_ in runs))
    labels, seconds = [], {}
    for rows, epochs, rate in runs:
        labels.append(label := f"{rows}x{epochs}")
        part = _first_rows(data, rows, given.out / f"data-{label}")
        started = time.perf_counter()
        _ludus("train", "sft", part, "--model", given.model, "--epochs", epochs, "--batch-size",
               given.batch_size, "--learning-rate", rate, "--report-to", "none",
               "-o", given.out / label)  # fmt: skip
        seconds[label] = time.perf_counter() - started
        # After each, so that what is known is shown whatever becomes of the next.
        _score(given, data, labels)
        _table(given.out, seconds)


def _score(given: argparse.Namespace, data: Path, labels: list[str]) -> None:
    candidates = [f"base=hf:{given.model}", *(f"{each}=hf:{given.out / each}" for each in labels)]
    scores = given.out / "scores"
    for name, seen in (("all", []), ("unseen", ["--exclude-tasks-in", data])):
        _ludus("eval", ENVIRONMENT, *(word for each in candidates for word in ("-c", each)), "-n",
               HELD_OUT, "--dataset-config", QUESTIONS, "--max-tokens", 64, "--concurrency", 256,
               *seen, "-o", scores)  # fmt: skip
        shutil.copy(scores / "summary.json", given.out / f"{name}.json")


def _arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--model", default="smollm2")
    asked.add_argument("--rows", nargs="+", default=["2000x2", "20000x2", "110000x2@5e-4"])
    asked.add_argument("--batch-size", type=int, default=64)
    asked.add_argument("--data", type=Path)
    asked.add_argument("--out", type=Path, default=Path("runs/warm_start"))
    return asked.parse_args()


def _run(text: str) -> tuple[int, int, float]:
    """Rows, epochs and rate: 110000x2@5e-4."""
    size, _, rate = text.partition("@")
    rows, epochs = map(int, size.split("x"))
    return rows, epochs, float(rate or RATE)


def _curated(out: Path, rows: int) -> Path:
    # Small questions repeat: not quite two episodes give one row that is nobody's copy.
    _ludus("collect", ENVIRONMENT, "-n", 2 * rows, "--dataset-config", QUESTIONS,
           "-o", out / "oracle")  # fmt: skip
    _ludus("curate", out / "oracle", "--overwrite", "-o", out / "data")
    return out / "data"


def _first_rows(data: Path, rows: int, to: Path) -> Path:
    to.mkdir(exist_ok=True)
    with (data / "train.jsonl").open("rb") as every, (to / "train.jsonl").open("wb") as some:
        some.writelines(islice(every, rows))
    return to


def _ludus(*words: object) -> None:
    command = [sys.executable, "-m", "ludus", *map(str, words)]
    print("$ ludus", *command[3:], flush=True)
    if status := subprocess.run(command).returncode:
        sys.exit(status)  # It has said why.


def _table(out: Path, seconds: dict[str, float]) -> None:
    print("\n| rows x epochs | training | tokens/s | format | accuracy | unseen questions |")
    print("|---|---|---|---|---|---|")
    every, unseen = (json.loads((out / f"{name}.json").read_text()) for name in ("all", "unseen"))
    for whole, new in zip(every["candidates"], unseen["candidates"], strict=True):
        label = whole["label"]
        about = _figures(out / label)
        cells = [f"{about['seconds']:.0f} s", f"{about['tokens_per_second']:,.0f}"] if about else []
        shares = [whole["metrics"]["format_compliance"], whole["metrics"]["accuracy"]]
        shares.append(new["metrics"]["accuracy"])
        print("|", " | ".join([label, *(cells or ["-", "-"]), *map(_share, shares)]), "|")
    print("whole commands, with loading and tokens:", {k: round(v) for k, v in seconds.items()})


def _figures(folder: Path) -> Any:
    about = folder / "training.json"
    return json.loads(about.read_text())["figures"] if about.is_file() else None


def _share(metric: Any) -> str:
    low, high = metric["low"], metric["high"]
    return f"{metric['value']:.1%} ({low:.1%} to {high:.1%}, n={metric['n']})"


if __name__ == "__main__":
    main()
