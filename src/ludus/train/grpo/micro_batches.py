"""Micro-batches: the rows of a GRPO step in parts that fit into the memory of the device.

The gradient of a step is summed over its micro-batches, so that the result does not depend on how
rows are divided. How many tokens fit is estimated from free memory before each step; after an
out-of-memory error the budget is halved and the step is repeated with the same episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ludus.errors import OutOfMemory
from ludus.train.grpo.rollout_batch import Batch, select_batch_rows

GIB = 1 << 30
MAX_TOKENS = 32_768
"""More tokens at once are hardly faster on any GPU, and other processes may need the memory."""
BATCH_FRACTION = 0.6
"""Share of free memory that the activations of a micro-batch may take, by the estimate."""
ACTIVATION_BYTES_PER_HIDDEN_UNIT = 90
"""Bytes of activations per token, layer and hidden unit that are kept for the backward pass, in
bfloat16."""
CHECKPOINT_BYTES_PER_HIDDEN_UNIT = 4
"""The same with gradient checkpointing, which keeps only the inputs of layers."""
_CUDA_CONTEXT_BYTES = 2 * GIB
"""Less memory than this outside our tensors is our own CUDA context, not other processes."""


@dataclass(frozen=True, slots=True)
class StepSnapshot:
    """The trainer's running sums at the start of a step, restored if the step is repeated."""

    loss: Any
    metrics: dict[str, list[float]]
    tokens: int

    @classmethod
    def take(cls, trainer: Any) -> Self:
        metrics = {name: list(values) for name, values in trainer._metrics["train"].items()}
        return cls(trainer._tr_loss.clone(), metrics, trainer.state.num_input_tokens_seen)

    def restore(self, trainer: Any) -> None:
        # Copies: the next attempt adds to them, and may fail as well.
        trainer._tr_loss = self.loss.clone()
        trainer._metrics["train"].clear()
        trainer._metrics["train"].update(
            {name: list(values) for name, values in self.metrics.items()}
        )
        trainer.state.num_input_tokens_seen = self.tokens


@dataclass(slots=True)
class MicroBatcher:
    """Divides the rows of a step. `max_rows` and `max_tokens` limit each micro-batch."""

    max_rows: int | None = None
    max_tokens: int | None = None
    """Padded tokens; None: as many as free memory is estimated to hold."""
    _lengths: list[int] = field(default_factory=list)

    def split(self, batch: Batch, trainer: Any) -> list[Batch]:
        """The micro-batches of a step, in the order of its rows."""
        prompt, completion = batch["prompt_mask"].sum(1), batch["completion_mask"].sum(1)
        self._lengths = (prompt + completion).tolist()
        estimate = estimate_token_budget(trainer)
        limits = [limit for limit in (self.max_tokens, estimate) if limit is not None]
        budget = min(limits) if limits else None
        parts = split_rows(self._lengths, max_tokens=budget, max_rows=self.max_rows)
        if len(parts) == 1:
            return [batch]
        return [select_batch_rows(batch, part) for part in parts]

    def halve(self, largest: int) -> bool:
        """Halve the budget, after a micro-batch of `largest` padded tokens ran out of memory.

        Returns whether smaller micro-batches are possible.
        """
        if largest <= max(self._lengths, default=0):
            return False
        self.max_tokens = largest // 2
        return True


def split_rows(
    lengths: Sequence[int], *, max_tokens: int | None, max_rows: int | None
) -> list[list[int]]:
    """Consecutive rows whose number, times the longest of them, is at most `max_tokens`.

    A row that is longer than that is a part of its own.
    """
    parts: list[list[int]] = []
    longest = 0
    for row, length in enumerate(lengths):
        rows = len(parts[-1]) + 1 if parts else 1
        longest = max(longest, length)
        too_many = max_rows is not None and rows > max_rows
        too_long = max_tokens is not None and rows * longest > max_tokens
        if not parts or too_many or too_long:
            parts.append([])
            longest = length
        parts[-1].append(row)
    return parts


def estimate_token_budget(trainer: Any) -> int | None:
    """The padded tokens of a micro-batch that fit into free GPU memory; None without a GPU."""
    args, model = trainer.args, trainer.model
    if args.device.type != "cuda":
        return None
    config = model.config.get_text_config()
    hidden, layers = config.hidden_size, config.num_hidden_layers
    per_token = ACTIVATION_BYTES_PER_HIDDEN_UNIT * hidden * layers
    if args.gradient_checkpointing:
        kept = CHECKPOINT_BYTES_PER_HIDDEN_UNIT * layers
        per_token = (kept + ACTIVATION_BYTES_PER_HIDDEN_UNIT) * hidden
    if not (args.bf16 or args.fp16):
        per_token *= 2
    free = free_gpu_bytes(args.device)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    # Gradients, and before the first step the two moments of Adam, are still to be allocated.
    copies = 1 if trainer.optimizer.state else 3
    needed = copies * sum(weight.numel() * weight.element_size() for weight in weights)
    return min(MAX_TOKENS, max(1, int(BATCH_FRACTION * (free - needed) / per_token)))


def free_gpu_bytes(device: Any) -> int:
    """Free memory of the GPU, including what PyTorch holds without using it."""
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def padded_tokens(batch: Mapping[str, Any]) -> int:
    """Rows times the longest of them, prompt and completion together."""
    lengths = batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)
    return int(len(lengths) * lengths.max())


def out_of_memory_error(tokens: int, device: Any) -> OutOfMemory:
    """The error where not even a single row fits."""
    import torch

    others_note = ""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        others = total - free - torch.cuda.memory_reserved(device)
        if others >= _CUDA_CONTEXT_BYTES:
            others_note = f"; other processes hold {others / GIB:.1f} of {total / GIB:.1f} GiB"
    return OutOfMemory(
        f"The GPU ran out of memory with a single episode of {tokens:,} tokens{others_note}. Use "
        "`gradient_checkpointing`, `lora`, or a smaller `max_episode_tokens`."
    )
