"""`episodes.jsonl` of a GRPO run: all episodes that were played, trained on or not.

A run that resumes from a checkpoint plays the steps after it again. Their episodes are truncated
first, so that none is in the file twice.
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
    """The file, opened for appending when training starts."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._journal: Journal | None = None

    def open(self, size: int) -> None:
        """Truncate the file to `size` bytes and append from there."""
        try:
            with self.file.open("ab") as file:
                os.truncate(file.fileno(), min(size, os.fstat(file.fileno()).st_size))
        except OSError as error:
            raise RunError(f"Cannot write {self.file}: {error.strerror or error}.") from error
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
