"""Token by token, after prompts with pictures in them.

A picture has rows and columns, so its tokens have three positions each, and the text after it goes
on from fewer positions than there are tokens. The model works them out once for a prompt; from
there on each row keeps how far it lies off. Prompts with and without pictures share a batch.
"""

from __future__ import annotations

from typing import Any

from ludus.policy.engine.hf_decoder import DecodeBatch, HFDecoder, SequenceState
from ludus.policy.vision.images import stack_images
from ludus.policy.vision.processor import VisionProcessor


class VLMDecoder(HFDecoder):
    """Answers batches of requests, some of which have pictures."""

    def __init__(self, model: Any, *, pad_id: int, vision: VisionProcessor) -> None:
        super().__init__(model, pad_id=pad_id)
        self.image_token_id = vision.image_token_id
        # A placeholder that the model says itself would ask for a picture that is not there.
        self.suppressed_ids = vision.suppressed_ids

    def build_batch(self, rows: list[SequenceState]) -> DecodeBatch:
        return _VLMBatch(self, rows)

    def rope_positions(self, ids: Any, attention_mask: Any, image_grid_thw: Any) -> tuple[Any, Any]:
        """Of each token in time, height and width; and how far each row's text lies off."""
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        kinds = (ids == self.image_token_id).int()
        placed: tuple[Any, Any] = base.model.get_rope_index(
            ids,
            mm_token_type_ids=kinds,
            image_grid_thw=image_grid_thw,
            attention_mask=attention_mask,
        )
        return placed


class _VLMBatch(DecodeBatch):
    _decoder: VLMDecoder
    _rope_deltas: Any
    """How much further a row's text would be if its pictures had a position for each token."""

    def prefill(self) -> Any:
        """The logits after each prompt, padded on its left. What they share is read for each."""
        import torch

        width = max(len(row.request.ids) for row in self.rows)
        gaps = [width - len(row.request.ids) for row in self.rows]
        pad = self._decoder.pad_id
        ids = [
            [pad] * gap + list(row.request.ids) for gap, row in zip(gaps, self.rows, strict=True)
        ]
        seen = torch.tensor([[0] * gap + [1] * (width - gap) for gap in gaps], device=self._device)
        given = stack_images([picture for row in self.rows for picture in row.request.images])
        given = {name: value.to(self._device) for name, value in given.items()}
        positions, self._rope_deltas = self._decoder.rope_positions(
            torch.tensor(ids, device=self._device), seen, given.get("image_grid_thw")
        )
        return self._forward(ids, positions, seen, **given)

    def _next_positions(self) -> Any:
        import torch

        text = torch.tensor([[row.position] for row in self.rows], device=self._device)
        return (text + self._rope_deltas).expand(3, -1, -1)

    def keep_rows(self, indices: list[int]) -> None:
        import torch

        super().keep_rows(indices)
        self._rope_deltas = self._rope_deltas[torch.tensor(indices, device=self._device)]
