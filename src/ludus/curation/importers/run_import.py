"""Files in a named format -> a run folder that every other stage can read.

What cannot be read is reported by file and line, and nothing is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from ludus.curation.importers.base import UnreadableRecord
from ludus.data.atomic_write import atomic_dir, existing_files
from ludus.data.episode import Episode, digest_64
from ludus.data.episode_reader import format_episode_id
from ludus.data.journal import Journal
from ludus.data.run_folder import RunFolder
from ludus.errors import ConfigError, RunError, did_you_mean
from ludus.rollout.summary import summarize_run

FORMATS = {
    "openenv": "results.jsonl of `openenv collect`",
    "nemo-gym": "rollouts of NeMo Gym",
    "verifiers": "results and traces of verifiers",
    "inspect": ".eval and .json logs of Inspect AI",
    "messages": "any JSONL with messages and a reward",
}
_MODULES = {
    "openenv": "openenv",
    "nemo-gym": "nemo_gym.nemo_gym_rollouts",
    "verifiers": "verifiers.verifiers_results",
    "inspect": "inspect.inspect_samples",
    "messages": "messages",
}
UNREADABLE_FILE = "unreadable.txt"
_DRAFT_PREFIX = ".importing-"
_RUN_FILES = ("run.json", "episodes.jsonl", "summary.json", UNREADABLE_FILE)
_MAX_EXAMPLES = 10


class Importer(Protocol):
    """A module of this package."""

    def find_files(self, path: Path) -> list[Path]:
        """Which files to read, where a file or a folder was named."""

    def unread_files(self, path: Path) -> list[Path]:
        """Which files of a folder are not read."""

    def read_episodes(self, path: Path) -> Iterator[Episode | UnreadableRecord]: ...


@dataclass(slots=True)
class ImportReport:
    """What came of an import."""

    folder: Path
    episodes: int = 0
    scored: int = 0
    broken: int = 0
    unreadable: int = 0
    examples: list[str] = field(default_factory=list)
    """The first of what cannot be read; all of it is in the folder's `unreadable.txt`."""
    unread_files: list[Path] = field(default_factory=list)
    """Files of named folders that are not in this format, and were not read."""


def import_files(
    name: str,
    paths: Sequence[Path],
    out: Path,
    *,
    on_episode: Callable[[int], None] = lambda episodes: None,
) -> ImportReport:
    """Read the files into a new run folder, which is there at the end or not at all."""
    format = load_importer(name)
    files = [file for path in paths for file in _find_files(format, path)]
    _check_unique(files)
    made = ImportReport(
        out, unread_files=[other for path in paths for other in format.unread_files(path)]
    )
    settings = {"environment": name, "format": name, "files": [str(file) for file in files]}
    with _open_draft(out) as draft:
        folder = RunFolder.create(draft, settings, kind="import")
        with Journal.open(folder.episodes_path) as journal:
            found = (item for file in files for item in format.read_episodes(file))
            for episode in _assign_ids(_iter_readable(found, draft, made), folder.metadata.digest):
                _append_episode(journal, episode, out)
                made.episodes += 1
                made.scored += episode.reward is not None
                made.broken += episode.broken
                on_episode(made.episodes)
        if not made.episodes:
            first = f": {made.examples[0]}" if made.examples else "; they are empty"
            raise RunError(f"There is no episode in the files that were named{first}.")
        folder.write_summary(summarize_run(folder))
    return made


def load_importer(name: str) -> Importer:
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        hint = did_you_mean(name, FORMATS)
        raise ConfigError(f"There is no format {name!r}: one of {known}. {hint}".rstrip())
    return cast(Importer, import_module(f"ludus.curation.importers.{_MODULES[name]}"))


def _find_files(format: Importer, path: Path) -> list[Path]:
    if not path.exists():
        raise RunError(f"There is no file or folder {path}.")
    return format.find_files(path)


def _check_unique(files: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for file in files:
        if file.resolve() in seen:
            raise ConfigError(f"{file} is named twice. Name each file once.")
        seen.add(file.resolve())


def _open_draft(out: Path) -> AbstractContextManager[Path]:
    """A folder that becomes the run. What is killed leaves none: its run.json comes last."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file, and a run needs a folder. Use another -o.")
    if out.exists() and existing_files(out, _DRAFT_PREFIX):
        raise RunError(f"{out} is there already, and not empty. Use another -o.")
    return atomic_dir(out, _DRAFT_PREFIX, marker="run.json", owned=_RUN_FILES)


def _append_episode(journal: Journal, episode: Episode, out: Path) -> None:
    """A journal can say that what it holds stands; of an import that breaks off nothing does."""
    try:
        journal.append(episode.to_line())
    except RunError as error:
        why = error.__cause__
        words = why.strerror if isinstance(why, OSError) else error
        raise RunError(f"{out} cannot be written: {words}. Nothing was imported.") from error


def _iter_readable(
    items: Iterator[Episode | UnreadableRecord], draft: Path, report: ImportReport
) -> Iterator[Episode]:
    """The episodes; what is none is written down."""
    for item in items:
        if isinstance(item, Episode):
            yield item
            continue
        report.unreadable += 1
        if report.unreadable <= _MAX_EXAMPLES:
            report.examples.append(str(item))
        with (draft / UNREADABLE_FILE).open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{item}\n")


def _assign_ids(episodes: Iterator[Episode], run: str) -> Iterator[Episode]:
    """Every episode with an id of its own: the file's, where it has one that no other has."""
    seen: set[int] = set()
    for number, episode in enumerate(episodes):
        name = episode.episode_id
        if not name or digest_64(name) in seen:
            name = format_episode_id(run, number)
        seen.add(digest_64(name))
        yield episode.model_copy(update={"episode_id": name})
