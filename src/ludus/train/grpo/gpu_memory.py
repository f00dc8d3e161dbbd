"""After an out-of-memory error on the GPU: find the largest batch size that fits.

It is found by trying: ever fewer rows of the batch that failed go forward and backward. So memory
held by other processes and the real length of the rows are taken into account.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ludus.errors import OutOfMemory

GIB = 1 << 30
_CUDA_CONTEXT_BYTES = 2 * GIB
"""Less memory than this outside our tensors is our own CUDA context, not other processes."""


@dataclass(frozen=True, slots=True)
class StepSnapshot:
    """The trainer's running sums at the start of a step, restored if the step fails."""

    loss: Any
    metrics: dict[str, list[float]]
    tokens: int

    @classmethod
    def take(cls, trainer: Any) -> Self:
        """Copy the sums before a step that may exceed the GPU's memory."""
        metrics = {name: list(values) for name, values in trainer._metrics["train"].items()}
        return cls(trainer._tr_loss.clone(), metrics, trainer.state.num_input_tokens_seen)

    def restore(self, trainer: Any) -> None:
        trainer._tr_loss = self.loss
        trainer._metrics["train"].clear()
        trainer._metrics["train"].update(self.metrics)
        trainer.state.num_input_tokens_seen = self.tokens


def find_largest_batch(try_batch: Callable[[int], None], sizes: Iterable[int]) -> int | None:
    """The largest of `sizes` for which `try_batch` does not run out of memory."""
    import torch

    for size in sorted(sizes, reverse=True):
        release_gpu_memory()
        try:
            try_batch(size)
        except torch.OutOfMemoryError:
            continue
        return size
    return None


def release_gpu_memory() -> None:
    """Return cached GPU memory, so that the next attempt starts from what is really in use."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def divisors_below(number: int, limit: int) -> list[int]:
    return [size for size in range(1, min(number, limit)) if number % size == 0]


def longest_rows(batch: dict[str, Any], count: int) -> Sequence[int]:
    """Indices of the rows with the most tokens, which need the most memory."""
    tokens = batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)
    rows: list[int] = sorted(tokens.argsort(descending=True)[:count].tolist())
    return rows


def reserve_optimizer_memory(trainer: Any) -> Any:
    """A tensor as large as the state that the optimizer allocates at its first step; else None."""
    import torch

    if trainer.args.device.type != "cuda" or trainer.optimizer.state:
        return None
    weights = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    # Adam keeps two moments per weight.
    size = 2 * sum(weight.numel() * weight.element_size() for weight in weights)
    return torch.empty(size, dtype=torch.uint8, device=trainer.args.device)


def gpu_memory_error(batch_size: int, largest: int | None, device: Any) -> OutOfMemory:
    """The error of a step that exceeds the GPU's memory; it advises the largest `batch_size`.

    `largest` is None if not even a single row fits.
    """
    import torch

    others_note = ""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        others = total - free - torch.cuda.memory_reserved(device)
        if others >= _CUDA_CONTEXT_BYTES:
            others_note = f" (other processes hold {others / GIB:.1f} of {total / GIB:.1f} GiB)"
    if largest is None:
        advice = (
            "Not even one row fits: use `gradient_checkpointing`, `lora`, or a smaller "
            "`max_episode_tokens`."
        )
    else:
        advice = f"The largest that fits is {largest}: set `batch_size` to it to continue this run."
    return OutOfMemory(
        f"The GPU ran out of memory with `batch_size` {batch_size}{others_note}. {advice}",
        batch_size=largest,
    )
