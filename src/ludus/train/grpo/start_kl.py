"""How far the policy has moved: its KL divergence from the model that training started with.

The start model played the held-out tasks before the first step. Its episodes are scored by the
current model, so that no second model has to be kept: the mean of log p_start - log p_now over
tokens that the start model sampled estimates the divergence.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from ludus.data.episode import Episode
from ludus.data.files import write_atomically
from ludus.train.distributed import Distributed
from ludus.train.grpo.packed_groups import EpisodeTokens
from ludus.train.output.checkpoints import start_rows_path

if TYPE_CHECKING:
    from ludus.train.grpo.trainer import GRPOTrainer

_ROWS = TypeAdapter(list[EpisodeTokens])


class StartKL:
    """Keeps the start model's episodes, also on disk, for a run that is resumed."""

    def __init__(self, out: Path, distributed: Distributed) -> None:
        self._path = start_rows_path(out)
        self._distributed = distributed
        self._rows: list[EpisodeTokens] | None = None

    def record(self, episodes: Sequence[Episode]) -> None:
        """Keep the episodes of the start model, those of all ranks."""
        rows = [EpisodeTokens.of(episode) for episode in episodes]
        self._rows = [row for row in rows if row.ids]
        with self._distributed.raise_on_all_ranks():
            if self._distributed.is_main:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, _ROWS.dump_json(self._rows).decode())

    def estimate(self, trainer: GRPOTrainer) -> float | None:
        """The divergence per sampled token; None where the start model's episodes are unknown."""
        if self._rows is None:
            self._rows = self._read_rows()
        rank, size = self._distributed.rank, self._distributed.world_size
        rows = self._rows[rank::size]
        before = [logprob for row in rows for logprob in row.logprobs]
        sums = [(sum(before) - float(trainer.score(rows).sum()), len(before))]
        difference, tokens = map(sum, zip(*self._distributed.all_gather(sums), strict=True))
        return difference / tokens if tokens else None

    def _read_rows(self) -> list[EpisodeTokens]:
        try:
            return _ROWS.validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return []
