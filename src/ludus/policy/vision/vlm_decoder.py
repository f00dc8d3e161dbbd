"""Decode batches for vision-language models with M-RoPE (three-dimensional rotary positions).

An image token has a position in time, height and width, and the text behind an image continues from
fewer positions than there are tokens. The model computes the positions of a prompt once; from then
on each row keeps the difference. Prompts with and without images share a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.policy.engine.hf_decoder import HFDecodeBatch, HFDecoder, HFSequence
from ludus.policy.vision.processor import VisionProcessor, stack_images

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


class VLMDecoder(HFDecoder):
    """An engine for requests that may contain images."""

    def __init__(self, model: PreTrainedModel, *, pad_id: int, vision: VisionProcessor) -> None:
        super().__init__(model, pad_id=pad_id)
        self.image_token_id = vision.image_token_id
        # A sampled placeholder would stand for an image that does not exist.
        self.suppressed_ids = vision.suppressed_ids

    def build_batch(self, rows: list[HFSequence]) -> HFDecodeBatch:
        return _VLMBatch(self, rows)


class _VLMBatch(HFDecodeBatch):
    _decoder: VLMDecoder
    _rope_deltas: Tensor
    """Position of a row's next text token, minus the number of its tokens so far."""

    def prefill(self) -> Tensor:
        """Return the logits after each prompt, padded on the left; no prefix is shared."""
        import torch

        width = max(len(row.request.ids) for row in self.rows)
        pads = [width - len(row.request.ids) for row in self.rows]
        pad_id = self._decoder.pad_id
        ids = [
            [pad_id] * pad + list(row.request.ids) for pad, row in zip(pads, self.rows, strict=True)
        ]
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads], device=self._device)
        inputs = stack_images([image for row in self.rows for image in row.request.images])
        inputs = {name: value.to(self._device) for name, value in inputs.items()}
        model, token_ids = self._decoder.model, torch.tensor(ids, device=self._device)
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        positions, self._rope_deltas = base.model.get_rope_index(
            token_ids,
            mm_token_type_ids=(token_ids == self._decoder.image_token_id).int(),
            image_grid_thw=inputs.get("image_grid_thw"),
            attention_mask=mask,
        )
        return self._forward(ids, positions, mask, **inputs)

    def _next_positions(self) -> Tensor:
        import torch

        text = torch.tensor([[row.length - 1] for row in self.rows], device=self._device)
        return (text + self._rope_deltas).expand(3, -1, -1)

    def keep_rows(self, indices: list[int]) -> None:
        import torch

        super().keep_rows(indices)
        self._rope_deltas = self._rope_deltas[torch.tensor(indices, device=self._device)]
