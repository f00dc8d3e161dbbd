"""`episodes.jsonl` of a run: every episode that was played for it, also those that taught nothing.

A run that goes on from a checkpoint plays again what came after it; that is taken away first, so
that no episode is there twice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from ludus.data.episode import Episode
from ludus.data.journal import Journal
from ludus.errors import RunError


class EpisodeLog:
    """The file, open for appending from the first step on."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._journal: Journal | None = None

    def open(self, size: int) -> None:
        """Begin after so many bytes."""
        try:
            with self.file.open("ab") as file:
                os.truncate(file.fileno(), min(size, os.fstat(file.fileno()).st_size))
        except OSError as error:
            raise RunError(f"{self.file} cannot be written: {error.strerror or error}.") from error
        self._journal = Journal.open(self.file)

    def append(self, episodes: Sequence[Episode]) -> None:
        assert self._journal is not None
        for episode in episodes:
            self._journal.append(episode.to_line())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._journal is not None:
            self._journal.close()
