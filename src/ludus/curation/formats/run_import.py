"""Import files of another tool into a run folder that all other stages can read.

Unreadable records are reported by file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ludus.curation.formats.base import UnreadableRecord
from ludus.curation.formats.messages import read_messages
from ludus.curation.formats.nemo_gym import is_gym_output, read_gym
from ludus.curation.formats.openenv import read_openenv
from ludus.data.episode import Episode, format_episode_id
from ludus.data.files import atomic_dir, existing_files, lock_dir, stable_hash
from ludus.data.journal import Journal
from ludus.data.run_folder import RUN_FILE, SUMMARY_FILE, RunFolder
from ludus.errors import ConfigError, RunError, did_you_mean
from ludus.rollout.stats import summarize_run


class ImportFormat(NamedTuple):
    """How the files of one tool are read, and found in a folder."""

    read: Callable[[Path], Iterator[Episode | UnreadableRecord]]
    patterns: tuple[str, ...]
    accepts: Callable[[Path], bool] = Path.is_file


FORMATS: Mapping[str, ImportFormat] = {
    "openenv": ImportFormat(read_openenv, ("results.jsonl",)),
    "nemo-gym": ImportFormat(read_gym, ("*.jsonl",), is_gym_output),
    "messages": ImportFormat(read_messages, ("*.jsonl",)),
}
UNREADABLE_FILE = "unreadable.txt"
_DRAFT_PREFIX = ".importing-"
_RUN_FILES = (RUN_FILE, "episodes.jsonl", SUMMARY_FILE, UNREADABLE_FILE)
_MAX_EXAMPLES = 10


@dataclass(slots=True)
class ImportReport:
    """Counts of an import."""

    folder: Path
    episodes: int = 0
    scored: int = 0
    broken: int = 0
    unreadable: int = 0
    examples: list[str] = field(default_factory=list)
    """The first unreadable records; all of them are in `unreadable.txt`."""
    unread_files: list[Path] = field(default_factory=list)
    """JSONL files of the given folders that are not in this format."""


def import_files(
    format: str,
    paths: Sequence[Path],
    out: Path,
    *,
    progress: Callable[[int], None] = lambda episodes: None,
) -> ImportReport:
    """Import files into a new run folder, which is written atomically.

    `progress` is called with the number of episodes so far.
    """
    if format not in FORMATS:
        hint = did_you_mean(format, FORMATS)
        raise ConfigError(
            f"`format` must be one of {', '.join(FORMATS)}, got {format!r}. {hint}".rstrip()
        )
    files = [file for path in paths for file in find_import_files(FORMATS[format], path)]
    read: set[Path] = set()
    for file in files:
        if file.resolve() in read:
            raise ConfigError(f"{file} is given twice. Give each file once.")
        read.add(file.resolve())
    others = (file for path in paths if path.is_dir() for file in sorted(path.glob("*.jsonl")))
    report = ImportReport(out, unread_files=[f for f in others if f.resolve() not in read])
    settings = {"environment": format, "format": format, "files": [str(file) for file in files]}
    with lock_dir(out):
        if existing_files(out, _DRAFT_PREFIX):
            raise RunError(f"{out} is not empty. Use another `out`.")
        with atomic_dir(out, _DRAFT_PREFIX, marker=RUN_FILE, owned=_RUN_FILES) as draft:
            folder = RunFolder.create(draft, settings, kind="import")
            with Journal.open(folder.episodes_path) as journal:
                records = (record for file in files for record in FORMATS[format].read(file))
                for episode in _iter_episodes(records, folder, report):
                    journal.append(episode.to_line())
                    report.episodes += 1
                    report.scored += episode.reward is not None
                    report.broken += episode.broken
                    progress(report.episodes)
            if not report.episodes:
                first = f": {report.examples[0]}" if report.examples else "; they are empty"
                raise RunError(f"The files contain no episodes{first}.")
            folder.write_summary(summarize_run(folder))
    return report


def find_import_files(format: ImportFormat, path: Path) -> list[Path]:
    """Find the files to import: the given file, or the files of a folder in this format."""
    if not path.exists():
        raise RunError(f"There is no file or folder {path}.")
    if not path.is_dir():
        return [path]
    found = {file for pattern in format.patterns for file in path.glob(pattern)}
    if files := sorted(file for file in found if format.accepts(file)):
        return files
    names = " or ".join(format.patterns)
    raise RunError(f"There is no {names} of this format in {path}. Name the file itself.")


def _iter_episodes(
    records: Iterator[Episode | UnreadableRecord], folder: RunFolder, report: ImportReport
) -> Iterator[Episode]:
    """Yield the episodes, and write all other records to `unreadable.txt`.

    Episodes without an id, or with one that occurred before, get a new one.
    """
    seen: set[int] = set()
    number = 0
    for record in records:
        if isinstance(record, Episode):
            episode_id = record.episode_id
            if not episode_id or stable_hash(episode_id) in seen:
                episode_id = format_episode_id(folder.metadata.digest, number)
            seen.add(stable_hash(episode_id))
            number += 1
            yield record.model_copy(update={"episode_id": episode_id})
            continue
        report.unreadable += 1
        if report.unreadable <= _MAX_EXAMPLES:
            report.examples.append(str(record))
        unreadable = folder.path / UNREADABLE_FILE
        with unreadable.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{record}\n")
