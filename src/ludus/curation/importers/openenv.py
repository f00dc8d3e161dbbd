"""Rollouts of OpenEnv's `collect`: `results.jsonl`, with `metadata.json` beside it.

The system prompt and the tools stand in neither file: OpenEnv adds them to what it sends to the
model, and keeps them nowhere. What Ludus wrote for OpenEnv has them in `extra`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.curation.importers import round_trip
from ludus.curation.importers.base import (
    FormatError,
    UnreadableRecord,
    parse_number,
    read_jsonl,
    require_object,
)
from ludus.curation.importers.chat_messages import parse_messages, parse_tools
from ludus.curation.importers.episode_builder import build_episode
from ludus.data.episode import Episode, StopReason
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

_RESULTS_FILE, _METADATA_FILE = "results.jsonl", "metadata.json"
_REWARD_WORDS = ("reward", "rewards", "score")


def read_episodes(path: Path) -> Iterator[Episode | UnreadableRecord]:
    beside = path.with_name(_METADATA_FILE)
    metadata, wrong = _read_metadata(beside)
    if wrong:
        yield UnreadableRecord(beside, None, wrong)
    yield from read_jsonl(path, partial(_parse_line, metadata))


def find_files(path: Path) -> list[Path]:
    """The file that is named, or the results in a folder. Backups beside them are left alone."""
    if not path.is_dir():
        return [path]
    if not (path / _RESULTS_FILE).is_file():
        raise RunError(
            f"There is no {_RESULTS_FILE} in {path}. Name the folder that `openenv collect` wrote to "
            "(its --output-dir), or the file itself."
        )
    return [path / _RESULTS_FILE]


def unread_files(path: Path) -> list[Path]:
    """The files of a folder that are not read at all."""
    if not path.is_dir():
        return []
    read_too = {path / _METADATA_FILE, *find_files(path)}
    return sorted(file for file in path.iterdir() if file.is_file() and file not in read_too)


def _read_metadata(path: Path) -> tuple[JsonObject, str | None]:
    """What the collection says of itself, or why that cannot be read. It may be missing."""
    try:
        return require_object(from_json(path.read_bytes()), "the file"), None
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError) as error:
        return {}, f"{error}; model and environment of these episodes are not known"


def _parse_line(metadata: JsonObject, line: JsonObject) -> Iterator[Episode]:
    if "messages" not in line:
        raise FormatError("there are no messages in it")
    extra = require_object(line.get("extra") or {}, "extra")
    task, done = line.get("task"), bool(line.get("done"))
    episode = build_episode(
        episode_id=str(line.get("episode_id") or ""),
        environment=str(metadata.get("env") or "openenv"),
        task=task if isinstance(task, dict) else None if task is None else {"task": task},
        messages=(
            *parse_messages(extra.get("system") or [], "system"),
            *parse_messages(line["messages"]),
        ),
        tools=parse_tools(line.get("tools", extra.get("tools"))),
        reward=parse_number(line.get("reward"), "reward"),
        agent=_agent_fields(metadata),
        rewards=_reward_parts(line.get("verify_metrics"), extra.get("rewards")),
        done=done,
        # OpenEnv calls it done too when the model answers in words; else its turns were used up.
        stop_reason=None if done else StopReason.MAX_TURNS,
    )
    yield round_trip.restore_fields(episode, extra.get(round_trip.KEY))


def _agent_fields(metadata: JsonObject) -> JsonObject:
    names = ("provider", "model", "temperature")
    return {name: metadata[name] for name in names if metadata.get(name) is not None}


def _reward_parts(metrics: Any, names: Any) -> dict[str, float]:
    """The verifier's numbers that are parts of the reward: counts of steps and the like are not.

    Ludus says which they are. Else those count that are called a reward or a score.
    """
    if not isinstance(metrics, dict):
        return {}
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and (name in names if isinstance(names, list) else _is_reward_name(name))
    }


def _is_reward_name(name: str) -> bool:
    return any(word in _REWARD_WORDS for word in name.lower().replace("/", "_").split("_"))
