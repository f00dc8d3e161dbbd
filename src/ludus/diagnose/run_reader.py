"""Reads the folder of a GRPO run for a diagnosis; never writes.

The run may still be running: lines that are only half written are skipped and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.data.jsonable import int_field, object_field
from ludus.data.training_log import EPISODES_FILE, LOG_FILE, RECORD_FILE, LogEntry, read_log
from ludus.diagnose.diagnosis import Diagnosis, diagnose
from ludus.diagnose.episode_stats import RunEpisodes, TokenLimits, read_episode_stats
from ludus.errors import RunError


@dataclass(frozen=True, slots=True)
class RunData:
    """The parts of a run folder that a diagnosis uses."""

    title: str
    planned_steps: int | None
    completed_steps: int | None
    """None: the run has not finished."""
    entries: tuple[LogEntry, ...]
    episodes: RunEpisodes
    notes: tuple[str, ...]
    """What could not be read."""

    @property
    def finished(self) -> bool:
        return self.completed_steps is not None

    def diagnose(self) -> Diagnosis:
        return diagnose(self.entries, self.episodes, completed_steps=self.completed_steps or 0)


def read_run(folder: Path) -> RunData:
    """Read a GRPO run; raise RunError for any other folder, and before the first logged step."""
    record = _read_record(folder)
    if (kind := record.get("kind")) != "grpo":
        raise RunError(
            f"{folder} holds a run of `ludus train {kind}`, which has no rewards to diagnose. Give "
            "the output folder of `ludus train grpo`."
        )
    entries = tuple(read_log(folder))
    if not any("reward" in entry or "unscored" in entry for entry in entries):
        raise RunError(
            f"No step of {folder} is logged yet. Wait for the first, or run `ludus train grpo` "
            "again to continue."
        )
    settings = object_field(record, "settings")
    episodes = read_episode_stats(
        folder / EPISODES_FILE,
        # Older records call the field `rewards`.
        has_reward_functions=bool(settings.get("reward_funcs") or settings.get("rewards")),
        limits=_token_limits(settings),
    )
    environment = object_field(record, "environment").get("spec")
    completed_steps = None
    if record.get("figures") is not None:  # Written when a run finishes.
        completed_steps = int_field(object_field(record, "figures"), "steps") or 0
    return RunData(
        title=f"GRPO of {record.get('model')}" + (f" on {environment}" if environment else ""),
        planned_steps=int_field(settings, "steps"),
        completed_steps=completed_steps,
        entries=entries,
        episodes=episodes,
        notes=tuple(_collect_notes(folder, len(entries), episodes)),
    )


def _read_record(folder: Path) -> dict[str, Any]:
    """Read `training.json` without a schema, so that those of newer versions can be read too."""
    if not folder.is_dir():
        raise RunError(
            f"There is no folder {folder}. Give the output folder of `ludus train grpo`."
        )
    file = folder / RECORD_FILE
    try:
        record = from_json(file.read_bytes())
    except FileNotFoundError:
        raise RunError(
            f"{folder} holds no training run: there is no {RECORD_FILE} in it. Give the output "
            "folder of `ludus train grpo`."
        ) from None
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise RunError(f"{file} is not JSON: {error}.") from error
    return record if isinstance(record, dict) else {}


def _token_limits(settings: dict[str, Any]) -> TokenLimits:
    """Return the token limits; unknown for TRL's rollouts, which also count the environment's.

    In older records, which have no `max_episode_tokens`, `max_tokens` is the episode's limit.
    """
    if settings.get("rollouts") == "trl":
        return TokenLimits()
    max_tokens = int_field(settings, "max_tokens")
    if "max_episode_tokens" not in settings:
        return TokenLimits(episode=max_tokens)
    return TokenLimits(int_field(settings, "max_episode_tokens"), max_tokens)


def _collect_notes(folder: Path, entries_read: int, episodes: RunEpisodes) -> list[str]:
    """Report skipped lines. One at the end of a file is usual while the run is writing it."""
    lines = sum(bool(line.strip()) for line in (folder / LOG_FILE).read_bytes().splitlines())
    skipped = {LOG_FILE: max(0, lines - entries_read), EPISODES_FILE: episodes.unreadable_lines}
    notes = [
        f"{count:,} {'line' if count == 1 else 'lines'} of {file} could not be read and "
        f"{'is' if count == 1 else 'are'} left out."
        for file, count in skipped.items()
        if count
    ]
    if not episodes.groups:
        notes.append(f"There are no scored episodes in {EPISODES_FILE}: no interval can be given.")
    return notes
