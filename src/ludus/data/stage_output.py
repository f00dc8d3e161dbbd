"""What a stage has written to a folder, recognized by its files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ludus.data.episode_reader import holds_episodes
from ludus.data.json_files import object_field, read_json_object
from ludus.data.run_folder import RUN_FILE, SUMMARY_FILE
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import EPISODES_FILE, LOG_FILE, RECORD_FILE

CURATION_FILE = "curation.json"
"""The metadata of a curated data set."""
_GROWING_FILES = (EPISODES_FILE, LOG_FILE, RUN_FILE, RECORD_FILE, SUMMARY_FILE, CURATION_FILE)
_SPLITS = ("train", "test")

OutputKind = Literal["run", "training", "evaluation", "dataset"]


@dataclass(frozen=True, slots=True)
class StageOutput:
    """A run, a training, an evaluation or a data set: a folder, or a single file of rows."""

    kind: OutputKind
    path: Path
    record: JsonObject = field(default_factory=dict)
    """`run.json`, `training.json`, `summary.json` of an evaluation, or `curation.json`; empty while
    it is missing or half written."""
    episodes: Path | None = None
    rows: Mapping[str, Path] = field(default_factory=dict)
    """The JSONL files of a data set by split."""

    @property
    def shown_path(self) -> str:
        """The path as the user would type it: relative to the working directory if below it."""
        absolute = self.path.absolute()
        with suppress(ValueError):
            return absolute.relative_to(Path.cwd()).as_posix()
        return absolute.as_posix()

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
        """The time of the last write to one of its files; 0 without any."""
        named = [self.path / name for name in _GROWING_FILES] if self.path.is_dir() else [self.path]
        files = [*named, *self.rows.values()]
        times = [0.0]
        for file in files:
            with suppress(OSError):
                times.append(file.stat().st_mtime)
        return max(times)

    @property
    def is_complete(self) -> bool:
        """Whether nothing will be written any more, unless it is extended."""
        if self.kind == "training":
            return self.record.get("metrics") is not None
        if self.kind == "run":
            return read_json_object(self.path / SUMMARY_FILE).get("complete") is True
        return True


def find_stage_output(path: Path) -> StageOutput | None:
    """Return the kind of a folder or file; None if no stage wrote it."""
    if path.is_file():
        if holds_episodes(path):
            return StageOutput("run", path, episodes=path)
        return StageOutput("dataset", path, rows={"train": path})
    try:
        # Opening a pipe of one of these names would wait for its writer.
        names = {file.name for file in path.iterdir() if file.is_file()}
    except OSError:
        return None
    episodes = path / EPISODES_FILE if EPISODES_FILE in names else None
    if RECORD_FILE in names:
        return StageOutput("training", path, read_json_object(path / RECORD_FILE), episodes)
    # Other tools write a run.json, too.
    record = read_json_object(path / RUN_FILE) if RUN_FILE in names else {}
    if episodes is not None or object_field(record, "settings"):
        return StageOutput("run", path, record, episodes)
    summary = read_json_object(path / SUMMARY_FILE) if SUMMARY_FILE in names else {}
    if summary.get("kind") == "eval":
        return StageOutput("evaluation", path, summary)
    rows = {split: path / f"{split}.jsonl" for split in _SPLITS if f"{split}.jsonl" in names}
    if rows or CURATION_FILE in names:
        return StageOutput("dataset", path, read_json_object(path / CURATION_FILE), rows=rows)
    return None
