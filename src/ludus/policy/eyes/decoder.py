"""Token by token, after prompts with pictures in them.

A picture has rows and columns, so its tokens have three positions each, and the text after it goes
on from fewer positions than there are tokens. The model works them out once for a prompt; from
there on each row keeps how far it lies off. Prompts with and without pictures share a batch.
"""

from __future__ import annotations

from typing import Any

from ludus.policy.decoder import Batch, Decoder, Row
from ludus.policy.eyes.pictures import stacked
from ludus.policy.eyes.sight import Eyes


class SeeingDecoder(Decoder):
    """Answers batches of requests, some of which have pictures."""

    def __init__(self, model: Any, *, pad_id: int, eyes: Eyes) -> None:
        super().__init__(model, pad_id=pad_id)
        self.token = eyes.token
        # A placeholder that the model says itself would ask for a picture that is not there.
        self.never = eyes.never

    def batch(self, rows: list[Row]) -> Batch:
        return _SeeingBatch(self, rows)

    def positions(self, ids: Any, seen: Any, grids: Any) -> tuple[Any, Any]:
        """Of each token in time, height and width; and how far each row's text lies off."""
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        kinds = (ids == self.token).int()
        placed: tuple[Any, Any] = base.model.get_rope_index(
            ids, mm_token_type_ids=kinds, image_grid_thw=grids, attention_mask=seen
        )
        return placed


class _SeeingBatch(Batch):
    _decoder: SeeingDecoder
    _offsets: Any
    """How much further a row's text would be if its pictures had a position for each token."""

    def read_prompts(self) -> Any:
        """The logits after each prompt, padded on its left. What they share is read for each."""
        import torch

        width = max(len(row.request.ids) for row in self.rows)
        gaps = [width - len(row.request.ids) for row in self.rows]
        pad = self._decoder.pad_id
        ids = [
            [pad] * gap + list(row.request.ids) for gap, row in zip(gaps, self.rows, strict=True)
        ]
        seen = torch.tensor([[0] * gap + [1] * (width - gap) for gap in gaps], device=self._device)
        given = stacked([picture for row in self.rows for picture in row.request.pictures])
        given = {name: value.to(self._device) for name, value in given.items()}
        positions, self._offsets = self._decoder.positions(
            torch.tensor(ids, device=self._device), seen, given.get("image_grid_thw")
        )
        return self._forward(ids, positions, seen, **given)

    def _positions(self) -> Any:
        import torch

        text = torch.tensor([[row.position] for row in self.rows], device=self._device)
        return (text + self._offsets).expand(3, -1, -1)

    def select(self, places: list[int]) -> None:
        import torch

        super().select(places)
        self._offsets = self._offsets[torch.tensor(places, device=self._device)]
