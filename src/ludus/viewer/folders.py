"""Find what can be viewed below some folders: runs, trainings, evaluations and data sets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import time

from ludus.data.jsonable import object_field
from ludus.data.run_folder import walk_run_folders
from ludus.data.stage_output import StageOutput, find_output
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import read_log, summarize_training
from ludus.errors import RunError, similar_path_hint
from ludus.evaluation.metrics import ACCURACY
from ludus.evaluation.stored_evaluation import parse_evaluation

DEFAULT_FOLDERS = ("runs", "evals", "data", "models")
_MAX_DEPTH = 5
_RUNNING_WINDOW_S = 60
"""A folder whose files changed within this time belongs to a run that goes on."""


def default_folders() -> list[Path]:
    """The folders of the stages that exist here; this folder where none does."""
    return [path for name in DEFAULT_FOLDERS if (path := Path(name)).is_dir()] or [Path()]


def check_folders(folders: Sequence[Path]) -> None:
    """Raise `RunError` for a folder that does not exist, or where nothing can be viewed."""
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
    """What the stages have written in and below some folders, in the order of the paths.

    The keys are the paths as shown, which are part of the page's addresses.
    """
    entries: dict[Path, StageOutput] = {}
    for folder in folders:
        for path in [folder] if folder.is_file() else walk_run_folders(folder, _MAX_DEPTH):
            if (found := find_output(path)) is not None:
                entries.setdefault(path.resolve(), found)
    shown = {entry.shown_path: entry for entry in entries.values()}
    return dict(sorted(shown.items()))


def summarize_entry(entry: StageOutput) -> JsonObject:
    """What the list of all entries shows of one."""
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
                if (accuracy := score.estimates.get(ACCURACY)) is not None
            )
    return ""
