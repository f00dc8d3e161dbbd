"""What is told where the GPU's memory does not suffice: the largest `--batch-size` that fits.

It is found by trying: rows of the batch that failed go forward and backward, fewer each time. So
what other processes hold, and how long the rows are, counts as it is.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ludus.errors import OutOfMemory

GIB = 1 << 30
_CUDA_CONTEXT_BYTES = 2 * GIB
"""What a process takes for itself besides its tensors, and others may hold without harm."""


@dataclass(frozen=True, slots=True)
class StepSnapshot:
    """The trainer's sums at the beginning of a step, to go back to when the step fails."""

    loss: Any
    metrics: dict[str, list[float]]
    tokens: int

    @classmethod
    def take(cls, trainer: Any) -> Self:
        metrics = {name: list(values) for name, values in trainer._metrics["train"].items()}
        return cls(trainer._tr_loss.clone(), metrics, trainer.state.num_input_tokens_seen)

    def restore(self, trainer: Any) -> None:
        trainer._tr_loss = self.loss
        trainer._metrics["train"].clear()
        trainer._metrics["train"].update(self.metrics)
        trainer.state.num_input_tokens_seen = self.tokens


def find_largest_batch(try_batch: Callable[[int], None], sizes: Iterable[int]) -> int | None:
    """The largest of these sizes that is tried without running out of memory."""
    for size in sorted(sizes, reverse=True):
        release_gpu_memory()
        if _fits(try_batch, size):
            return size
    return None


def _fits(attempt: Callable[[int], None], size: int) -> bool:
    import torch

    try:
        attempt(size)
    except torch.OutOfMemoryError:
        return False
    return True


def release_gpu_memory() -> None:
    """Free cached GPU memory, so that the next attempt does not find it as full."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def divisors_below(number: int, below: int) -> list[int]:
    return [size for size in range(1, min(number, below)) if number % size == 0]


def longest_rows(batch: dict[str, Any], count: int) -> Sequence[int]:
    """The rows with the most tokens: those decide what fits."""
    tokens = batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)
    rows: list[int] = sorted(tokens.argsort(descending=True)[:count].tolist())
    return rows


def reserve_optimizer_memory(trainer: Any) -> Any:
    """Memory that the optimizer will take at its first step, held until this is forgotten."""
    import torch

    if trainer.args.device.type != "cuda" or trainer.optimizer.state:
        return None
    learned = [each for each in trainer.model.parameters() if each.requires_grad]
    # Adam keeps two numbers for each weight.
    size = 2 * sum(each.numel() * each.element_size() for each in learned)
    return torch.empty(size, dtype=torch.uint8, device=trainer.args.device)


def out_of_memory_error(batch_size: int, fitting: int | None, device: Any) -> OutOfMemory:
    """What to tell, in one line."""
    short = f"The GPU's memory does not suffice for --batch-size {batch_size}{_other_processes_note(device)}."
    if fitting is None:
        advice = (
            "Not one row fits: use --gradient-checkpointing, --lora, or fewer --max-episode-tokens."
        )
    else:
        advice = (
            f"The largest that fits is --batch-size {fitting}: the same command with it goes on."
        )
    return OutOfMemory(f"{short} {advice}", batch_size=fitting)


def _other_processes_note(device: Any) -> str:
    import torch

    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    if others < _CUDA_CONTEXT_BYTES:
        return ""
    return f" (other processes hold {others / GIB:.1f} of {total / GIB:.1f} GiB)"
