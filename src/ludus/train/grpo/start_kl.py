"""How far the policy has moved: its KL divergence from the model that training started with.

The start model played the held-out tasks before the first step. Its episodes are scored by the
current model, so that no second model has to be kept: the mean of log p_start - log p_now over
tokens that the start model sampled estimates the divergence.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ludus.data.episode import Episode
from ludus.data.files import write_atomically
from ludus.train.distributed import Distributed
from ludus.train.grpo.rollout_batch import RolloutRow, to_rollout_row
from ludus.train.output.checkpoints import start_rows_path

_ROWS = TypeAdapter(list[RolloutRow])
_BATCH_SIZE = 8


class StartKL:
    """Keeps the start model's episodes, also on disk, for a run that is resumed."""

    def __init__(self, out: Path, distributed: Distributed, pad_token_id: int) -> None:
        self._path = start_rows_path(out)
        self._distributed, self._pad_token_id = distributed, pad_token_id
        self._rows: list[RolloutRow] | None = None

    def record(self, episodes: Sequence[Episode]) -> None:
        """Keep the episodes of the start model, those of all ranks."""
        rows = [to_rollout_row(episode, self._pad_token_id) for episode in episodes]
        self._rows = [row for row in rows if any(row[3])]
        with self._distributed.raise_on_all_ranks():
            if self._distributed.is_main:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, _ROWS.dump_json(self._rows).decode())

    def estimate(self, trainer: Any) -> float | None:
        """The divergence per sampled token; None where the start model's episodes are unknown."""
        if self._rows is None:
            self._rows = self._read_rows()
        rank, size = self._distributed.rank, self._distributed.world_size
        sums = [score_rows(trainer, self._rows[rank::size])]
        difference, tokens = map(sum, zip(*self._distributed.all_gather(sums), strict=True))
        return difference / tokens if tokens else None

    def _read_rows(self) -> list[RolloutRow]:
        try:
            return _ROWS.validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return []


def score_rows(trainer: Any, rows: Sequence[RolloutRow]) -> tuple[float, int]:
    """The sum of differences of log-probabilities over sampled tokens, and their number."""
    import torch
    from trl.trainer.utils import pad

    device, total, tokens = trainer.args.device, 0.0, 0
    for first in range(0, len(rows), _BATCH_SIZE):
        prompts, completions, logprobs, sampled = (
            [torch.tensor(each) for each in column]
            for column in zip(*rows[first : first + _BATCH_SIZE], strict=True)
        )
        ids = torch.cat(
            [pad(prompts, padding_side="left"), pad(completions, padding_side="right")], dim=1
        )
        ones = [[torch.ones_like(each) for each in side] for side in (prompts, completions)]
        mask = torch.cat([pad(ones[0], padding_side="left"), pad(ones[1])], dim=1)
        with torch.no_grad():
            scores, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids.to(device), mask.to(device), max(map(len, completions))
            )
        has_loss = pad(sampled).to(device)
        total += float(((pad(logprobs).to(device) - scores) * has_loss).sum())
        tokens += int(has_loss.sum())
    return total, tokens
