"""Everything that is viewed: the entries below the folders, and the index of their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic, time
from typing import Self

from ludus.data.json_files import object_field
from ludus.data.run_folder import walk_run_folders
from ludus.data.stage_output import StageOutput, find_stage_output
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import read_log, summarize_training
from ludus.errors import NameFlags, RunError, similar_path_hint
from ludus.evaluation.metrics import ACCURACY
from ludus.evaluation.results import parse_evaluation
from ludus.viewer.dataset_rows import DatasetRows, Tokenizers
from ludus.viewer.episode_index import EpisodeIndex
from ludus.viewer.episode_queries import EpisodeQueries

_SCAN_INTERVAL_S, _UPDATE_INTERVAL_S = 3.0, 1.0


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
        self.tokenizers = Tokenizers()
        self._stopped = Event()
        self._thread = Thread(target=self._update_repeatedly, name="library", daemon=True)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.index)
        self._stack.callback(self.rows.close)
        self.scan()
        self._thread.start()
        self._stack.callback(self._thread.join)
        self._stack.callback(self.index.stop)
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
        entries = []
        for entry in self.entries.values():
            totals = entry.episodes and self.index.find_file(entry.shown_path).index.totals
            facts = {
                "episodes": totals.episodes if totals else None,
                "reward": totals.rewards.mean if totals else None,
            }
            entries.append({**summarize_entry(entry), **facts})
        return {
            "revision": self.index.revision,
            "indexed_bytes": done,
            "total_bytes": total,
            "error": self.index.error,
            "folder": str(Path.cwd()),
            "entries": entries,
        }

    def _update_repeatedly(self) -> None:
        next_scan = monotonic() + _SCAN_INTERVAL_S
        while not self._stopped.is_set():
            if monotonic() >= next_scan:
                with suppress(RunError, OSError):  # A file has just gone; the next scan sees it.
                    self.scan()
                next_scan = monotonic() + _SCAN_INTERVAL_S
            self.index.update()
            self._stopped.wait(_UPDATE_INTERVAL_S)


DEFAULT_FOLDERS = ("runs", "evals", "data", "models")
_MAX_DEPTH = 5
_RUNNING_WINDOW_S = 60
"""A folder whose files changed within this time belongs to a run that goes on."""


def default_folders() -> list[Path]:
    """The folders of the stages that exist here; this folder if none does."""
    return [path for name in DEFAULT_FOLDERS if (path := Path(name)).is_dir()] or [Path()]


def check_folders(folders: Sequence[Path]) -> None:
    """Raise `RunError` if a folder does not exist, or if nothing can be viewed."""
    for folder in folders:
        if not folder.exists():
            hint = similar_path_hint(str(folder)) or "`ludus runs` lists runs."
            raise RunError(f"There is no folder {folder}. {hint}")
    if not find_entries(folders):
        names = ", ".join(map(str, folders))
        raise RunError(
            f"There is nothing to view in {names}: no run, training, evaluation or data set. "
            "`ludus collect` creates a run."
        )


def find_entries(folders: Sequence[Path]) -> dict[str, StageOutput]:
    """Find the output of stages in and below some folders, by path.

    The keys are the paths as shown, which are part of the page's addresses.
    """
    entries: dict[Path, StageOutput] = {}
    for folder in folders:
        for path in [folder] if folder.is_file() else walk_run_folders(folder, _MAX_DEPTH):
            if (found := find_stage_output(path)) is not None:
                entries.setdefault(path.resolve(), found)
    shown = {entry.shown_path: entry for entry in entries.values()}
    return dict(sorted(shown.items()))


def summarize_entry(entry: StageOutput) -> JsonObject:
    """Summarize an entry for the list of all entries."""
    modified_at = entry.modified_at
    return {
        "key": entry.shown_path,
        "kind": entry.kind,
        "stage": entry.record.get("kind") or entry.kind,
        "environment": entry.environment,
        "model": entry.model,
        "created_at": entry.record.get("created_at"),
        "modified_at": modified_at,
        "running": time() - modified_at < _RUNNING_WINDOW_S and not entry.is_complete,
        "has_episodes": entry.episodes is not None,
        "splits": list(entry.rows),
        "summary": _summarize_record(entry),
    }


def _summarize_record(entry: StageOutput) -> str:
    """The sizes of a data set, the accuracy of each candidate, or how far a training came."""
    if entry.kind == "training":
        finished = bool(entry.record.get("metrics"))
        return summarize_training(entry.record, () if finished else list(read_log(entry.path)))
    if entry.kind == "dataset":
        sizes = object_field(object_field(entry.record, "report"), "rows")
        return ", ".join(
            f"{count:,} {split}" if isinstance(count := sizes.get(split), int) else split
            for split in entry.rows
        )
    if entry.kind == "evaluation":
        with suppress(RunError):
            return ", ".join(
                f"{score.label} {100 * accuracy.value:.1f}%"
                for score in parse_evaluation(entry.path, entry.record).scores
                if (accuracy := score.metrics.get(ACCURACY)) is not None
            )
    return ""
