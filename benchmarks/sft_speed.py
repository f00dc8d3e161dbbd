"""SFT in tokens per second: TRL as the tutorials set it up, TRL with a large batch, and Ludus.

    python benchmarks/sft_speed.py DATA [--model smollm2] [--steps 120] [--same-losses]

All train the same model in bf16 on the same tokens and labels with the same rate and schedule; TRL
gets them ready made, so that only training is timed. Shown are real tokens per second (padding is
none) over the second half of the steps, and the last loss. TRL with batch 64 and Ludus see the
same rows in the same order, so their losses can be compared step by step; `--same-losses` runs
these two alone.
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
    from benchmarks.with_gpu import need_gpu
else:
    from with_gpu import need_gpu

RATE, WARM_UP = 2e-4, 10


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    tokens_per_second: float
    losses: list[float]


def main() -> None:
    given = _arguments()
    need_gpu()
    rows = _rows(given.data, given.model)
    seed = {"batch": 4, "accumulate": 2}
    slow = [] if given.same_losses else [
        _trl("TRL, batch 4 x 2", given, rows, **seed, gradient_checkpointing=True),
        _trl("TRL, batch 64", given, rows, batch=64, gradient_checkpointing=True),
    ]  # fmt: skip
    results = [
        *slow,
        _trl("TRL, batch 64, no checkpointing", given, rows, batch=64),
        _ludus("Ludus, batch 64", given, rows),
    ]
    print(f"\n{'':34}{'tokens/s':>10}{'last loss':>11}")
    for result in results:
        speed, loss = f"{result.tokens_per_second:,.0f}", f"{result.losses[-1]:.4f}"
        print(f"{result.name:34}{speed:>10}{loss:>11}")
    theirs, ours = results[-2].losses, results[-1].losses
    apart = max(abs(a - b) for a, b in zip(theirs, ours, strict=True))
    for step, (a, b) in enumerate(zip(theirs, ours, strict=True), 1):
        print(f"step {10 * step:5}: {a:.4f} and {b:.4f}")
    print(f"largest difference between the last two at any logged step: {apart:.4f}")


def _arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("data", type=Path)
    asked.add_argument("--model", default="smollm2")
    asked.add_argument("--steps", type=int, default=120)
    asked.add_argument("--same-losses", action="store_true")
    return asked.parse_args()


def _rows(data: Path, model: str) -> Any:
    """The tokens and labels that Ludus trains on."""
    from ludus.policy.chat.chat_format import find_chat_format
    from ludus.policy.tokenizer import load_tokenizer
    from ludus.train.data.loading import open_data
    from ludus.train.data.tokenization import RowTokenizer, tokenize

    tokenizer = load_tokenizer(model)
    maker = RowTokenizer(tokenizer, find_chat_format(tokenizer).template, "sft")
    file = Path(tempfile.mkdtemp()) / "rows.arrow"
    made = tokenize(open_data(data).train, maker, file).load()
    return made.select_columns(["input_ids", "labels"])


def _trl(
    name: str, given: argparse.Namespace, rows: Any, *, batch: int, accumulate: int = 1,
    gradient_checkpointing: bool = False,
) -> Result:  # fmt: skip
    import trl
    from transformers import TrainerCallback

    from ludus.policy.load import load_model
    from ludus.policy.tokenizer import load_tokenizer

    clock = type("Clock", (Clock, TrainerCallback), {})()
    trainer = trl.SFTTrainer(
        model=load_model(given.model, dtype="float32"),
        args=trl.SFTConfig(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulate, max_steps=given.steps, learning_rate=RATE,
            warmup_steps=WARM_UP, lr_scheduler_type="cosine", logging_steps=10, bf16=True,
            gradient_checkpointing=gradient_checkpointing, report_to="none", save_strategy="no",
            disable_tqdm=True, max_length=None, seed=0, data_seed=0, log_level="error",
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=rows, processing_class=load_tokenizer(given.model), callbacks=[clock],
    )  # fmt: skip
    trainer.train()
    times, half = clock.times, given.steps // 2
    tokens = batch * accumulate * (given.steps - half) * _mean_length(rows)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return Result(name, tokens / (times[-1] - times[half - 1]), losses)


class Clock:
    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())


def _ludus(name: str, given: argparse.Namespace, rows: Any) -> Result:
    from ludus import sft
    from ludus.train.config import TrainConfig

    out = Path(tempfile.mkdtemp()) / "out"
    how = {"warmup_steps": WARM_UP, "logging_steps": 10}
    longest = max(map(len, rows["input_ids"]))
    sft(
        given.data, given.model, out,
        TrainConfig(
            steps=given.steps, batch_size=64, learning_rate=RATE, max_length=longest,
            report_to="none",
            overrides={**how, "logging_first_step": False},
        ),
    )  # fmt: skip
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "loss" in line]
    middle = next(line for line in lines if line["step"] >= given.steps // 2)
    steps = lines[-1]["step"] - middle["step"]
    seconds = lines[-1]["seconds"] - middle["seconds"]
    return Result(name, 64 * steps * _mean_length(rows) / seconds, [line["loss"] for line in lines])


def _mean_length(rows: Any) -> float:
    return sum(map(len, rows["input_ids"])) / len(rows)


if __name__ == "__main__":
    main()
