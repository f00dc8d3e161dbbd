"""Import files of another tool into a run folder that all other stages can read.

Unreadable records are reported by file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from ludus.curation.importers.base import Importer, UnreadableRecord
from ludus.curation.importers.inspect_importer import InspectImporter
from ludus.curation.importers.messages_importer import MessagesImporter
from ludus.curation.importers.nemo_gym_importer import NemoGymImporter
from ludus.curation.importers.openenv_importer import OpenEnvImporter
from ludus.curation.importers.verifiers_importer import VerifiersImporter
from ludus.data.episode import Episode, format_episode_id
from ludus.data.files import atomic_dir, existing_files, lock_dir, stable_hash
from ludus.data.journal import Journal
from ludus.data.run_folder import RUN_FILE, SUMMARY_FILE, RunFolder
from ludus.errors import ConfigError, RunError, did_you_mean
from ludus.rollout.stats import summarize_run

IMPORTERS: Mapping[str, Importer] = {
    "openenv": OpenEnvImporter(),
    "nemo-gym": NemoGymImporter(),
    "verifiers": VerifiersImporter(),
    "inspect": InspectImporter(),
    "messages": MessagesImporter(),
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
    """Files of the given folders that are not in this format."""


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
    importer = get_importer(format)
    files = _find_import_files(importer, paths)
    report = ImportReport(
        out, unread_files=[file for path in paths for file in importer.unread_files(path)]
    )
    settings = {"environment": format, "format": format, "files": [str(file) for file in files]}
    with lock_dir(out), _open_run_folder(out) as draft:
        folder = RunFolder.create(draft, settings, kind="import")
        with Journal.open(folder.episodes_path) as journal:
            records = (record for file in files for record in importer.read_episodes(file))
            for episode in _iter_episodes(records, folder, report):
                try:
                    journal.append(episode.to_line())
                except RunError as error:
                    # The journal's message says that earlier episodes are kept; here none are.
                    cause = error.__cause__
                    reason = cause.strerror if isinstance(cause, OSError) else error
                    raise RunError(
                        f"Cannot write {out}: {reason}. Nothing was imported."
                    ) from error
                report.episodes += 1
                report.scored += episode.reward is not None
                report.broken += episode.broken
                progress(report.episodes)
        if not report.episodes:
            first = f": {report.examples[0]}" if report.examples else "; they are empty"
            raise RunError(f"The files contain no episodes{first}.")
        folder.write_summary(summarize_run(folder))
    return report


def _open_run_folder(out: Path) -> AbstractContextManager[Path]:
    """Return a draft folder whose files move to `out` at the end, run.json last."""
    if existing_files(out, _DRAFT_PREFIX):
        raise RunError(f"{out} is not empty. Use another `out`.")
    return atomic_dir(out, _DRAFT_PREFIX, marker=RUN_FILE, owned=_RUN_FILES)


def get_importer(format: str) -> Importer:
    if format not in IMPORTERS:
        known = ", ".join(IMPORTERS)
        hint = did_you_mean(format, IMPORTERS)
        raise ConfigError(f"`format` must be one of {known}, got {format!r}. {hint}".rstrip())
    return IMPORTERS[format]


def _find_import_files(importer: Importer, paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise RunError(f"There is no file or folder {path}.")
        files += importer.find_files(path)
    seen: set[Path] = set()
    for file in files:
        if file.resolve() in seen:
            raise ConfigError(f"{file} is given twice. Give each file once.")
        seen.add(file.resolve())
    return files


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
