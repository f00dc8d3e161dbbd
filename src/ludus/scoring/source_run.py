"""The run to rescore: its episodes, and which of them are still to be scored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ludus.data.config import config_digest
from ludus.data.episode import Episode, StopReason
from ludus.data.episode_reader import parse_head
from ludus.data.json_files import read_lines
from ludus.data.run_folder import RUN_FILE, RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

TRAINING_FILE = "training.json"


class EpisodeLine(NamedTuple):
    """The position of an episode's line in a journal, and its outcome."""

    offset: int
    size: int
    reward: float | None
    """None if the episode is broken."""
    broken: bool
    group_id: str


@dataclass(frozen=True, slots=True)
class SourceRun:
    """A finished or stopped run whose episodes are scored again. Nothing of it is changed."""

    path: Path
    settings: JsonObject
    """The run's settings, from its `run.json`."""
    digest: str
    lines: dict[str, EpisodeLine]
    """Lines by episode id; see `index_episodes`."""

    @classmethod
    def open(cls, path: Path) -> SourceRun:
        """Read the heads of all lines of a run folder, or of a GRPO training's folder."""
        journal = path / "episodes.jsonl"
        if not path.is_dir():
            raise RunError(f"There is no run folder {path}.")
        if not journal.is_file():
            raise RunError(f"{path} has no episodes.jsonl.")
        lines = index_episodes(journal)
        if not lines:
            raise RunError(f"{journal} has no episodes.")
        if (path / RUN_FILE).is_file() or not (path / TRAINING_FILE).is_file():
            metadata = RunFolder.open(path).metadata
            return cls(path, metadata.settings, metadata.digest, lines)
        source = cls(path, {}, "", lines)
        first = next(iter(lines))
        settings = {"environment": source.read([first])[0].environment}
        return cls(path, settings, config_digest(settings), lines)

    def find_pending(self, journal: Path, *, retry_broken: bool) -> set[str]:
        """The ids of the episodes that the journal of the new run does not have yet.

        With `retry_broken`, also of episodes that broke there, unless they are broken here, too.
        """
        new_lines = index_episodes(journal) if journal.exists() else {}
        return {
            episode_id
            for episode_id, line in self.lines.items()
            if (new_line := new_lines.get(episode_id)) is None
            or (retry_broken and new_line.broken and not line.broken)
        }

    def read(self, ids: Iterable[str]) -> list[Episode]:
        """Read these episodes."""
        episodes = []
        with (self.path / "episodes.jsonl").open("rb") as file:
            for episode_id in ids:
                line = self.lines[episode_id]
                file.seek(line.offset)
                episodes.append(Episode.from_line(file.read(line.size)))
        return episodes


def index_episodes(journal: Path) -> dict[str, EpisodeLine]:
    """Index a journal's episodes by id: the first line that is not broken, or else the last.

    Lines that are not episodes are skipped.
    """
    lines: dict[str, EpisodeLine] = {}
    offset = 0
    for number, line in enumerate(read_lines(journal), 1):
        if line.endswith(b"\n") and (head := parse_head(line, journal, number)) is not None:
            earlier = lines.get(head.episode_id)
            if earlier is None or earlier.broken:
                broken = StopReason(head.stop_reason).is_fault
                reward = None if broken else head.reward
                place = EpisodeLine(offset, len(line), reward, broken, head.group_id)
                lines[head.episode_id] = place
        offset += len(line)
    return lines
