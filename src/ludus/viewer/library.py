"""Everything that is viewed: the entries below the folders, and the index of their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Self

from ludus.data.stage_output import StageOutput
from ludus.data.tool_schema import JsonObject
from ludus.errors import NameFlags, RunError
from ludus.viewer.dataset_rows import DatasetRows
from ludus.viewer.episode_index import EpisodeIndex
from ludus.viewer.episode_queries import EpisodeQueries
from ludus.viewer.folders import check_folders, find_entries, summarize_entry
from ludus.viewer.tokenizer_process import TokenizerProcess

_SCAN_INTERVAL_S = 3.0


class Library:
    """The entries, looked for again every few seconds, and what answers questions about them."""

    def __init__(
        self, folders: Sequence[Path], *, name_flags: NameFlags = lambda text, command: text
    ) -> None:
        check_folders(folders)
        self._folders = folders
        self.name_flags = name_flags
        self.entries: dict[str, StageOutput] = {}
        self.index = EpisodeIndex()
        self.queries = EpisodeQueries(self.index)
        self.rows = DatasetRows()
        self.tokenizers = TokenizerProcess()
        self._stopped = Event()
        self._thread = Thread(target=self._scan_repeatedly, name="folders", daemon=True)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.index)
        self._stack.callback(self.rows.close)
        self._stack.callback(self.tokenizers.close)
        self.scan()
        self._thread.start()
        self._stack.callback(self._thread.join)
        self._stack.callback(self._stopped.set)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def scan(self) -> None:
        """Look for new entries."""
        self.entries = find_entries(self._folders)
        self.index.add_entries(list(self.entries.values()))

    def find(self, key: str) -> StageOutput:
        if key not in self.entries:
            raise RunError(f"{key!r} is not there any more, or was never viewed here.")
        return self.entries[key]

    def describe(self) -> JsonObject:
        """What the page polls: the entries, and how far the index is."""
        done, total = self.index.progress
        return {
            "revision": self.index.revision,
            "indexed_bytes": done,
            "total_bytes": total,
            "error": self.index.error,
            "folder": str(Path.cwd()),
            "entries": [
                {**summarize_entry(entry), **self._describe_episodes(entry)}
                for entry in self.entries.values()
            ],
        }

    def _describe_episodes(self, entry: StageOutput) -> JsonObject:
        if entry.episodes is None:
            return {"episodes": None, "reward": None}
        file = self.index.find_file(entry.shown_path)
        totals = file.index.totals
        return {"episodes": totals.episodes, "reward": totals.rewards.mean}

    def _scan_repeatedly(self) -> None:
        while not self._stopped.wait(_SCAN_INTERVAL_S):
            with suppress(RunError, OSError):  # A file has just gone; the next scan sees it.
                self.scan()
