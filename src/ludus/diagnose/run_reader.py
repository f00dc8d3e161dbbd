"""A GRPO run's folder, read as far as a diagnosis needs it. Nothing here writes.

The run may be under way: what is half written is passed over, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.data.training_log import EPISODES_FILE, LOG_FILE, RECORD_FILE, read_log
from ludus.diagnose.diagnosis import Diagnosis, diagnose
from ludus.diagnose.episode_stats import RunEpisodes, TokenLimits, read_episodes
from ludus.diagnose.log_stats import LogEntry
from ludus.errors import RunError


@dataclass(frozen=True, slots=True)
class RunData:
    """What a folder holds of a run."""

    title: str
    planned_steps: int | None
    """Steps that it is to have."""
    completed_steps: int | None
    """Steps that it has had; None: it has not finished."""
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
    """All of it; an error where the folder holds no GRPO run, or none that has made a step."""
    about = _read_record(folder)
    if (kind := about.get("kind")) != "grpo":
        raise RunError(
            f"{folder} holds a run of `ludus train {kind}`, which has no rewards to diagnose: it "
            "takes one of `ludus train grpo`."
        )
    logged = tuple(read_log(folder))
    if not any("reward" in line or "unscored" in line for line in logged):
        raise RunError(
            f"No step of {folder} is logged yet: {LOG_FILE} has none. Wait for the first, or call "
            "`ludus train grpo` again to go on."
        )
    settings = _get_dict(about, "settings")
    played = read_episodes(
        folder / EPISODES_FILE,
        has_reward_functions=bool(settings.get("rewards")),
        limits=_token_limits(settings),
    )
    return RunData(
        title=f"GRPO of {about.get('model')}{_environment_suffix(about)}",
        planned_steps=_as_int(settings.get("steps")),
        completed_steps=_completed_steps(about),
        entries=logged,
        episodes=played,
        notes=tuple(_collect_notes(folder, len(logged), played)),
    )


def _read_record(folder: Path) -> dict[str, Any]:
    """What `training.json` says; only what is needed, so that a newer one can be read too."""
    if not folder.is_dir():
        raise RunError(
            f"There is no folder {folder}. Name the --output-dir of a `ludus train grpo`."
        )
    try:
        found = from_json((folder / RECORD_FILE).read_bytes())
    except FileNotFoundError:
        raise RunError(
            f"{folder} holds no training: there is no {RECORD_FILE} in it. Name the --output-dir of a "
            "`ludus train grpo`."
        ) from None
    except OSError as error:
        raise RunError(
            f"{folder / RECORD_FILE} cannot be read: {error.strerror or error}."
        ) from error
    except ValueError as error:
        raise RunError(f"{folder / RECORD_FILE} is not JSON: {error}.") from error
    return found if isinstance(found, dict) else {}


def _environment_suffix(record: dict[str, Any]) -> str:
    spec = _get_dict(record, "environment").get("spec")
    return f" on {spec}" if spec else ""


def _completed_steps(record: dict[str, Any]) -> int | None:
    """A run that has finished has figures."""
    if record.get("figures") is None:
        return None
    return _as_int(_get_dict(record, "figures").get("steps")) or 0


def _token_limits(settings: dict[str, Any]) -> TokenLimits:
    """The token limits of an episode and of a reply; TRL's own loop counts other tokens too.

    In a record without `max_episode_tokens`, `max_tokens` is that of the episode.
    """
    if settings.get("rollouts") == "trl":
        return TokenLimits()
    reply = _as_int(settings.get("max_tokens"))
    if "max_episode_tokens" not in settings:
        return TokenLimits(episode=reply)
    return TokenLimits(_as_int(settings["max_episode_tokens"]), reply)


def _get_dict(record: dict[str, Any], key: str) -> dict[str, Any]:
    found = record.get(key)
    return found if isinstance(found, dict) else {}


def _as_int(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _collect_notes(folder: Path, entries_read: int, episodes: RunEpisodes) -> list[str]:
    """Lines that were passed over. One at the end is usual while its writer is at it."""
    written = sum(bool(line.strip()) for line in (folder / LOG_FILE).read_bytes().splitlines())
    missing = {LOG_FILE: max(0, written - entries_read), EPISODES_FILE: episodes.unreadable_lines}
    notes = [
        f"{count:,} {'line' if count == 1 else 'lines'} of {name} could not be read and "
        f"{'is' if count == 1 else 'are'} left out."
        for name, count in missing.items()
        if count
    ]
    if not episodes.groups:
        notes.append(f"There are no scored episodes in {EPISODES_FILE}: no interval can be given.")
    return notes
