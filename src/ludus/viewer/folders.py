"""Find what can be viewed below some folders: runs, trainings, evaluations and data sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Literal

from pydantic_core import from_json

from ludus.curation.output_dir import METADATA_FILE
from ludus.data.episode_reader import holds_episodes
from ludus.data.jsonable import object_field
from ludus.data.run_folder import walk_run_folders
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import EPISODES_FILE, LOG_FILE, RECORD_FILE
from ludus.errors import RunError, similar_path_hint

DEFAULT_FOLDERS = ("runs", "evals", "data", "models")
_MAX_DEPTH = 5
_SPLITS = ("train", "test")
_RUNNING_WINDOW_S = 60
"""A folder whose files changed within this time belongs to a run that goes on."""

EntryKind = Literal["run", "training", "evaluation", "dataset"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder, or a single JSONL file, that can be viewed."""

    key: str
    """Its path as the user would type it; part of the page's addresses."""
    kind: EntryKind
    path: Path
    record: JsonObject
    """`run.json`, `training.json`, `summary.json` of an evaluation, or `curation.json`."""
    episodes: Path | None = None
    rows: dict[str, Path] | None = None
    """The JSONL files of a data set, by split."""

    @property
    def settings(self) -> JsonObject:
        return object_field(self.record, "settings")

    @property
    def environment(self) -> str:
        if self.kind == "training":
            return str(object_field(self.record, "environment").get("spec") or "")
        return str(self.settings.get("environment") or "")

    @property
    def model(self) -> str:
        agent = object_field(self.settings, "agent")
        return str(self.record.get("model") or agent.get("model") or agent.get("provider") or "")

    @property
    def modified_at(self) -> float:
        """The time of the last write to one of its growing files."""
        files = (EPISODES_FILE, LOG_FILE, "run.json", RECORD_FILE, "summary.json", METADATA_FILE)
        paths = [self.path] if self.path.is_file() else [self.path / name for name in files]
        return max((time_of(path) for path in paths), default=0.0)

    @property
    def is_complete(self) -> bool:
        """Whether nothing will be written any more, unless it is extended."""
        if self.kind == "training":
            return self.record.get("figures") is not None
        return self.kind != "run" or _read_json(self.path / "summary.json").get("complete") is True

    def as_json(self) -> JsonObject:
        modified_at = self.modified_at
        return {
            "key": self.key,
            "kind": self.kind,
            "stage": self.record.get("kind") or self.kind,
            "environment": self.environment,
            "model": self.model,
            "created_at": self.record.get("created_at"),
            "modified_at": modified_at,
            "running": time() - modified_at < _RUNNING_WINDOW_S and not self.is_complete,
            "has_episodes": self.episodes is not None,
            "splits": list(self.rows or ()),
        }


def time_of(path: Path) -> float:
    """The time of the last write to a file; 0 where it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


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


def find_entries(folders: Sequence[Path]) -> dict[str, Entry]:
    """The entries in and below some folders by key, in the order of their paths."""
    entries: dict[Path, Entry] = {}
    for folder in folders:
        if folder.is_file():
            found = _open_file(folder)
            entries.setdefault(folder.resolve(), found)
            continue
        for path in walk_run_folders(folder, _MAX_DEPTH):
            for entry in _open_folder(path):
                entries.setdefault(path.resolve() / entry.kind, entry)
    return {entry.key: entry for entry in sorted(entries.values(), key=lambda entry: entry.key)}


def _open_file(file: Path) -> Entry:
    if holds_episodes(file):
        return Entry(_key(file), "run", file, {}, episodes=file)
    return Entry(_key(file), "dataset", file, {}, rows={"train": file})


def _open_folder(path: Path) -> Iterator[Entry]:
    key = _key(path)
    try:
        names = {file.name for file in path.iterdir()}
    except OSError:
        return
    episodes = path / EPISODES_FILE if EPISODES_FILE in names else None
    if RECORD_FILE in names:
        yield Entry(key, "training", path, _read_json(path / RECORD_FILE), episodes)
    elif "run.json" in names:
        record = _read_json(path / "run.json")
        if object_field(record, "settings") or episodes:
            yield Entry(key, "run", path, record, episodes)
    elif episodes is not None:
        yield Entry(key, "run", path, {}, episodes)
    elif "summary.json" in names:
        summary = _read_json(path / "summary.json")
        if summary.get("kind") == "eval":
            yield Entry(key, "evaluation", path, summary)
    rows = {split: path / f"{split}.jsonl" for split in _SPLITS if f"{split}.jsonl" in names}
    if rows or METADATA_FILE in names:
        yield Entry(key, "dataset", path, _read_json(path / METADATA_FILE), rows=rows)


def _key(path: Path) -> str:
    """The path relative to the working directory if it is below it, else as a whole."""
    absolute = path.absolute()
    with suppress(ValueError):
        return absolute.relative_to(Path.cwd()).as_posix()
    return absolute.as_posix()


def _read_json(file: Path) -> JsonObject:
    """The object in a file; empty while it is missing or half written."""
    try:
        fields = from_json(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}
