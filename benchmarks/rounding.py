"""How much of a small update a model computed in bfloat16 sees, with and without dithered weights.

    python benchmarks/rounding.py [--learning-rate 2e-6] [--steps 4]

Adam raises the log-probability of one row of tokens and lowers that of another. After each step
both are computed with the float32 weights and, as training does, in bfloat16. Runs on a CPU.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from ludus.policy.load import load_model
from ludus.train.trainable_model import dither_weights

ROWS, LENGTH = 2, 48


def mean_logprobs(model: Any, ids: torch.Tensor, *, bfloat16: bool) -> torch.Tensor:
    """The mean log-probability of each row's tokens."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = model(input_ids=ids).logits[:, :-1]
    logprobs = torch.log_softmax(logits.float(), -1)
    return logprobs.gather(-1, ids[:, 1:, None]).mean((1, 2))


def measure(ids: torch.Tensor, learning_rate: float, steps: int, *, dithered: bool) -> list[str]:
    """A line of the table for each step."""
    model = load_model("smollm2", device="cpu", dtype="float32")
    if dithered:
        dither_weights(model, "bfloat16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0)

    def difference(*, bfloat16: bool) -> float:
        with torch.no_grad():
            first, second = mean_logprobs(model, ids, bfloat16=bfloat16).tolist()
        return float(first - second)

    start = [difference(bfloat16=each) for each in (False, True)]
    lines = []
    for step in range(1, steps + 1):
        first, second = mean_logprobs(model, ids, bfloat16=True)
        optimizer.zero_grad()
        (second - first).backward()
        optimizer.step()
        exact, seen = (difference(bfloat16=each) - start[each] for each in (False, True))
        weights = "dithered" if dithered else "as published"
        lines.append(f"| {weights} | {step} | {exact:.3f} | {seen:.3f} | {seen / exact:.0%} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--learning-rate", type=float, default=2e-6)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 20_000, (ROWS, LENGTH), generator=generator)
    print("| weights | step | change in float32 | seen in bfloat16 | share |")
    print("|---|---:|---:|---:|---:|")
    for dithered in (False, True):
        print("\n".join(measure(ids, args.learning_rate, args.steps, dithered=dithered)))


if __name__ == "__main__":
    main()
