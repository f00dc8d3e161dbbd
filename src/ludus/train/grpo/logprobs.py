"""Log-probabilities of the tokens that the model sampled, under its current weights.

If the model allows it, episodes are packed (`packed_groups`): on GPUs with flash attention,
elsewhere with a mask. Other models, and episodes with images, are computed row by row with padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ludus.train.acceleration import compile_layers
from ludus.train.data.rows import IGNORE_INDEX
from ludus.train.distributed import sharded_modules
from ludus.train.grpo.packed_groups import (
    EpisodeTokens,
    pack_groups,
    packed_length,
    supports_packing,
)

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import Tensor
    from transformers import PreTrainedModel
    from trl.trainer.utils import FusedCausalLMOutput

CHECKED_EPISODES = 8
MAX_ROUNDING = 1e-3
"""Largest difference of log-probabilities in float32 that counts as rounding."""
MAX_MEAN_ROUNDING = 0.1
"""Largest mean difference in 16 bits. Layouts that are not equivalent differ by nats."""


class Layout(Enum):
    """How episodes are given to the model."""

    FLASH = "packed, with flash attention"
    MASKED = "packed, with a mask"
    PADDED = "row by row, with padding"


class TokenScores(NamedTuple):
    """Values of the sampled tokens of all episodes, in their order."""

    logprobs: Tensor
    entropies: Tensor | None
    aux_loss: Tensor | None
    """The load-balancing loss of a mixture of experts, if the model returns it."""


@dataclass(slots=True)
class LogprobScorer:
    """Scores episodes with a model that has TRL's fused head."""

    model: PreTrainedModel
    layout: Layout
    accelerator: Accelerator
    pad_token_id: int
    aux_loss: bool = False
    checked: bool = False
    """Whether the layout has been compared with rows."""
    float16_works: bool = True
    compiles: bool = False
    """Whether the layers are compiled once the layout has been checked."""
    say: Callable[[str], None] = lambda text: None

    @classmethod
    def for_model(
        cls, model: PreTrainedModel, accelerator: Accelerator, pad_token_id: int, *,
        aux_loss: bool, compiles: bool, say: Callable[[str], None],
    ) -> LogprobScorer:  # fmt: skip
        """A scorer with the fastest layout that the model and the device support."""
        from ludus.train.packed_attention import supports_varlen, varlen_kernel_works

        scorer = cls(model, Layout.PADDED, accelerator, pad_token_id, aux_loss, say=say)
        scorer.compiles = compiles
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        if not supports_packing(base.config):
            return scorer
        dtype = accelerator.mixed_precision
        if accelerator.device.type == "cuda" and dtype in ("bf16", "fp16"):
            import torch

            half = torch.bfloat16 if dtype == "bf16" else torch.float16
            if supports_varlen(base) and varlen_kernel_works(base, half):
                scorer.layout = Layout.FLASH
        elif base.config._attn_implementation == "sdpa":
            scorer.layout = Layout.MASKED
        return scorer

    def size(self, episodes: Sequence[EpisodeTokens]) -> int:
        """Tokens that the model computes for these episodes together, including padding."""
        if self.layout is Layout.PADDED:
            return len(episodes) * max((len(each.ids) for each in episodes), default=0)
        return packed_length(episodes)

    @contextmanager
    def score(
        self, episodes: Sequence[EpisodeTokens], images: Mapping[str, Tensor] | None = None,
        *, precise: bool = False,
    ) -> Iterator[TokenScores]:  # fmt: skip
        """The scores of these episodes; the backward pass belongs into the context.

        `precise`: with less rounding than in training. Rounding weights to bfloat16 alone moves a
        policy as far as a careful step does.
        """
        import torch

        if not self.checked and not images:
            self._check_layout(episodes)
        too_short = any(len(each.prompt) < 2 for each in episodes if each.ids)
        layout = Layout.PADDED if images or too_short else self.layout
        finer = precise and self.float16_works and self.accelerator.mixed_precision == "bf16"
        finer = finer and self.accelerator.device.type == "cuda"
        usual = self.accelerator.autocast
        autocast = torch.autocast("cuda", torch.float16) if finer else usual()
        with autocast, self._forward(episodes, layout, images or {}, wrapped=not finer) as scores:
            fits = scores.logprobs.isfinite().all()
            if finer and sharded_modules(self.model):
                # All ranks make the same passes.
                fits = self.accelerator.gather(fits.reshape(1)).all()
            if not finer or fits:
                yield scores
                return
        # The model's activations are too large for float16.
        self.float16_works = False
        with self.score(episodes, images) as scores:
            yield scores

    def _check_layout(self, episodes: Sequence[EpisodeTokens]) -> None:
        """Fall back to rows if packed episodes have other log-probabilities with this model."""
        import torch

        some = list(islice((each for each in episodes if each.ids), CHECKED_EPISODES))
        if not some:
            return
        self.checked = True
        if self.layout is Layout.PADDED:
            return
        training, reason = self.model.training, ""
        self.model.eval()
        try:
            with torch.no_grad(), self.accelerator.autocast():
                with self._forward(some, self.layout, {}) as packed:
                    pass
                with self._forward(some, Layout.PADDED, {}) as rows:
                    pass
            difference = (packed.logprobs - rows.logprobs).abs()
            exact = self.accelerator.mixed_precision == "no"
            measured = 0.0
            if difference.numel():
                measured = float(difference.max() if exact else difference.mean())
            if not measured < (MAX_ROUNDING if exact else MAX_MEAN_ROUNDING):
                reason = f"log-probabilities differ by {measured:.2g}"
        except (TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        finally:
            self.model.train(training)
        if reason:
            self.layout = Layout.PADDED
            self.say(f"Episodes are computed row by row, which is slower: packed, {reason}")
        elif self.compiles and self.layout is Layout.FLASH:
            compile_layers(self.model, dynamic=True)

    @contextmanager
    def _forward(
        self, episodes: Sequence[EpisodeTokens], layout: Layout, images: Mapping[str, Tensor], *,
        wrapped: bool = True,
    ) -> Iterator[TokenScores]:  # fmt: skip
        # accelerate wraps the forward method into the autocast of training.
        forward = self.model if wrapped else getattr(self.model, "_original_forward", self.model)
        device = self.accelerator.device
        options = {"fused_lm_head": True, "use_cache": False}
        if self.aux_loss:
            options["output_router_logits"] = True
        if layout is Layout.PADDED:
            ids, labels = pad_episodes(episodes, self.pad_token_id, device)
            mask = (labels != PADDED_LABEL).long()
            labels = labels.clamp(min=IGNORE_INDEX)
            output = forward(
                input_ids=ids, attention_mask=mask, shift_labels=labels, **images, **options
            )
            yield _select(output, labels)
            return
        packed = pack_groups(episodes, device)
        inputs = {"input_ids": packed.input_ids, "position_ids": packed.position_ids}
        inputs["shift_labels"] = packed.labels
        if layout is Layout.MASKED:
            output = forward(**inputs, attention_mask=packed.attention_mask(), **options)
            yield _select(output, packed.labels)
            return

        from ludus.train.packed_attention import group_attention

        with group_attention(self.model, packed):
            yield _select(forward(**inputs, attention_mask=None, **options), packed.labels)


PADDED_LABEL = IGNORE_INDEX - 1


def pad_episodes(
    episodes: Sequence[EpisodeTokens], pad_token_id: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Pad ids and shifted labels to (episodes, longest); padding has `PADDED_LABEL`."""
    import numpy as np
    import torch

    longest = max((len(each.ids) for each in episodes), default=0) or 1
    ids = np.full((len(episodes), longest), pad_token_id, dtype=np.int64)
    labels = np.full((len(episodes), longest), PADDED_LABEL, dtype=np.int64)
    for row, each in enumerate(episodes):
        size = len(each.ids)
        ids[row, :size] = each.ids
        labels[row, :size] = IGNORE_INDEX
        sampled = np.flatnonzero(each.sampled)
        labels[row, sampled - 1] = ids[row, sampled]
    return torch.from_numpy(ids).to(device), torch.from_numpy(labels).to(device)


def _select(output: FusedCausalLMOutput, labels: Tensor) -> TokenScores:
    scored = labels != IGNORE_INDEX
    entropies = None if output.entropy is None else output.entropy[scored]
    return TokenScores(output.log_probs[scored], entropies, output.aux_loss)
