"""SFT speed in tokens per second: TRL as in its tutorials, TRL with a large batch, and Ludus.

    python benchmarks/sft_speed.py DATA [--model smollm2] [--steps 120] [--same-losses]

All train the same model in bf16 on the same tokens and labels with the same learning rate and
schedule; TRL gets tokenized rows, so that only training is timed. Shown are tokens per second
without padding over the second half of the steps, and the last loss. TRL with batch 64 and Ludus
see the same rows in the same order, so their losses can be compared step by step; `--same-losses`
runs only these two.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.gpu_check import require_gpu
else:
    from gpu_check import require_gpu

LEARNING_RATE, WARMUP_STEPS = 2e-4, 10


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    tokens_per_second: float
    losses: list[float]


def main() -> None:
    args = _parse_args()
    require_gpu()
    rows = _tokenize(args.data, args.model)
    tutorial = {"batch": 4, "accumulate": 2}
    slow = [] if args.same_losses else [
        _train_trl("TRL, batch 4 x 2", args, rows, **tutorial, gradient_checkpointing=True),
        _train_trl("TRL, batch 64", args, rows, batch=64, gradient_checkpointing=True),
    ]  # fmt: skip
    results = [
        *slow,
        _train_trl("TRL, batch 64, no checkpointing", args, rows, batch=64),
        _train_ludus("Ludus, batch 64", args, rows),
    ]
    print(f"\n{'':34}{'tokens/s':>10}{'last loss':>11}")
    for result in results:
        speed, loss = f"{result.tokens_per_second:,.0f}", f"{result.losses[-1]:.4f}"
        print(f"{result.name:34}{speed:>10}{loss:>11}")
    pairs = list(zip(results[-2].losses, results[-1].losses, strict=True))
    for step, (a, b) in enumerate(pairs, 1):
        print(f"step {10 * step:5}: {a:.4f} and {b:.4f}")
    difference = max(abs(a - b) for a, b in pairs)
    print(f"largest difference between the last two at any logged step: {difference:.4f}")


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--same-losses", action="store_true")
    return parser.parse_args()


def _tokenize(data: Path, model: str) -> Any:
    """The tokens and labels that Ludus trains on."""
    from ludus.policy.chat.chat_format import find_chat_format
    from ludus.policy.load import load_tokenizer
    from ludus.train.data.tokenization import RowTokenizer, tokenize
    from ludus.train.data.training_data import open_data

    tokenizer = load_tokenizer(model)
    row_tokenizer = RowTokenizer(tokenizer, find_chat_format(tokenizer).template, "sft")
    file = Path(tempfile.mkdtemp()) / "rows.arrow"
    rows = tokenize(open_data(data).train, row_tokenizer, file).load()
    return rows.select_columns(["input_ids", "labels"])


def _train_trl(
    name: str, args: argparse.Namespace, rows: Any, *, batch: int, accumulate: int = 1,
    gradient_checkpointing: bool = False,
) -> Result:  # fmt: skip
    import trl
    from transformers import TrainerCallback

    from ludus.policy.load import load_model, load_tokenizer

    timer = type("StepTimer", (StepTimer, TrainerCallback), {})()
    trainer = trl.SFTTrainer(
        model=load_model(args.model, dtype="float32"),
        args=trl.SFTConfig(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulate, max_steps=args.steps,
            learning_rate=LEARNING_RATE,
            warmup_steps=WARMUP_STEPS, lr_scheduler_type="cosine", logging_steps=10, bf16=True,
            gradient_checkpointing=gradient_checkpointing, report_to="none", save_strategy="no",
            disable_tqdm=True, max_length=None, seed=0, data_seed=0, log_level="error",
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=rows, processing_class=load_tokenizer(args.model), callbacks=[timer],
    )  # fmt: skip
    trainer.train()
    times, half = timer.times, args.steps // 2
    tokens = batch * accumulate * (args.steps - half) * _mean_length(rows)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return Result(name, tokens / (times[-1] - times[half - 1]), losses)


class StepTimer:
    """Records the time at the end of each step, after a device sync."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())


def _train_ludus(name: str, args: argparse.Namespace, rows: Any) -> Result:
    from ludus import sft
    from ludus.train.config import TrainConfig

    out = Path(tempfile.mkdtemp()) / "out"
    overrides = {"warmup_steps": WARMUP_STEPS, "logging_steps": 10}
    longest = max(map(len, rows["input_ids"]))
    sft(
        args.data, args.model, out,
        TrainConfig(
            steps=args.steps, batch_size=64, learning_rate=LEARNING_RATE, max_length=longest,
            report_to="none",
            overrides={**overrides, "logging_first_step": False},
        ),
    )  # fmt: skip
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "loss" in line]
    middle = next(line for line in lines if line["step"] >= args.steps // 2)
    steps = lines[-1]["step"] - middle["step"]
    seconds = lines[-1]["seconds"] - middle["seconds"]
    return Result(name, 64 * steps * _mean_length(rows) / seconds, [line["loss"] for line in lines])


def _mean_length(rows: Any) -> float:
    return sum(map(len, rows["input_ids"])) / len(rows)


if __name__ == "__main__":
    main()
