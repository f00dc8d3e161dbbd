"""How many tokens are trained on at once: as many as fit into this run's share of the GPU.

Memory per token is measured on computed parts, not estimated from free memory, so that several runs
can share a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ludus.errors import OutOfMemory
from ludus.policy.device import gpu_memory_share
from ludus.train.grpo.packed_groups import EpisodeTokens

if TYPE_CHECKING:
    import torch
    from transformers import Trainer

GIB = 1 << 30
FIRST_TOKENS = 8_192
"""Tokens of the first part, on which memory per token is measured."""
MAX_TOKENS = 131_072
"""More tokens at once are hardly faster on any GPU."""
USED_FRACTION = 0.8
"""Share of the free part of the budget that a part may take; the rest is for fragmentation."""


@dataclass(slots=True)
class MemoryBudget:
    """Divides the episodes of a step into parts."""

    max_rows: int | None = None
    max_tokens: int | None = None
    """Set after an out-of-memory error."""
    bytes_per_token: float = 0.0
    """The largest measured value."""
    part_tokens: int = 0
    """Tokens of the last part."""
    part_rows: int = 0

    def next_stop(
        self, episodes: Sequence[EpisodeTokens], start: int,
        size: Callable[[Sequence[EpisodeTokens]], int], trainer: Trainer,
    ) -> int:  # fmt: skip
        """Where the part that begins with episode `start` ends; it has at least one episode."""
        most = len(episodes) if self.max_rows is None else min(len(episodes), start + self.max_rows)
        limit = self.token_limit(trainer)
        low, high = start + 1, most
        if limit is not None:
            # Make the parts equal: a small last part would take longer than its share.
            remaining = size(episodes[start:])
            limit = max(1, ceil(remaining / ceil(remaining / limit)))
            while low < high:  # The largest stop whose part is within the limit.
                middle = (low + high + 1) // 2
                if size(episodes[start:middle]) <= limit:
                    low = middle
                else:
                    high = middle - 1
        else:
            low = most
        self.part_rows, self.part_tokens = low - start, size(episodes[start:low])
        return low

    def token_limit(self, trainer: Trainer) -> int | None:
        """Tokens of the next part; None on devices whose memory is not measured."""
        import torch

        if (device := trainer.args.device).type != "cuda":
            return self.max_tokens
        if not self.bytes_per_token:
            limit = FIRST_TOKENS
        else:
            free = gpu_memory_share(device) - torch.cuda.memory_allocated(device)
            weights = [each for each in trainer.model.parameters() if each.requires_grad]
            if not trainer.optimizer.state:
                # Adam's two moments are not allocated yet; FSDP divides them, too.
                parts = (getattr(each, "_local_tensor", each) for each in weights)
                free -= 2 * sum(each.numel() * each.element_size() for each in parts)
            limit = min(MAX_TOKENS, max(1, int(USED_FRACTION * free / self.bytes_per_token)))
        return limit if self.max_tokens is None else min(limit, self.max_tokens)

    @contextmanager
    def measure(self, tokens: int, device: torch.device) -> Iterator[None]:
        """Measure the memory that this many tokens take."""
        import torch

        if device.type != "cuda" or not tokens:
            yield
            return
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield
        peak = torch.cuda.max_memory_allocated(device) - before
        self.bytes_per_token = max(self.bytes_per_token, peak / tokens)

    def halve(self) -> int | None:
        """Halve the limit after the last part ran out of memory.

        Returns its tokens; None if it was a single episode.
        """
        if self.part_rows <= 1:
            return None
        self.max_tokens = max(1, self.part_tokens // 2)
        return self.part_tokens

    def error(self, device: torch.device) -> OutOfMemory:
        """The error if the last part does not fit and cannot be made smaller."""
        import torch

        others = ""
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            held = total - free - torch.cuda.memory_reserved(device)
            others = f"; other processes hold {held / GIB:.1f} of {total / GIB:.1f} GiB"
        return OutOfMemory(
            f"The GPU ran out of memory with {self.part_tokens:,} tokens at once{others}. Use "
            f"{'a smaller `batch_size`, ' * (self.part_rows > 1)}"
            "`gradient_checkpointing`, `lora`, or a smaller `max_episode_tokens`."
        )
