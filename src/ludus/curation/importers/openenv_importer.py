"""Import rollouts of `openenv collect`: `results.jsonl`, and `metadata.json` next to it.

OpenEnv stores neither the system prompt nor the tools. Files that Ludus wrote for OpenEnv have them
in `extra`.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pydantic_core import from_json

from ludus.curation.importers.base import (
    EXTRA_KEY,
    FormatError,
    UnreadableRecord,
    as_numbers,
    as_object,
    build_episode,
    list_files,
    parse_number,
    read_jsonl,
    require_object,
    restore_fields,
)
from ludus.curation.importers.chat_messages import parse_messages, parse_tools
from ludus.data.episode import Episode, StopReason
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

_RESULTS_FILE, _METADATA_FILE = "results.jsonl", "metadata.json"
_REWARD_WORDS = frozenset({"reward", "rewards", "score"})


class OpenEnvImporter:
    """Imports the output of `openenv collect`."""

    def find_files(self, path: Path) -> list[Path]:
        """Return the file itself, or the results of a folder without backups."""
        if not path.is_dir():
            return [path]
        if not (path / _RESULTS_FILE).is_file():
            raise RunError(
                f"There is no {_RESULTS_FILE} in {path}. Name the output folder of `openenv "
                "collect`, or the file itself."
            )
        return [path / _RESULTS_FILE]

    def unread_files(self, path: Path) -> list[Path]:
        if not path.is_dir():
            return []
        read = {path / _METADATA_FILE, *self.find_files(path)}
        return [file for file in list_files(path) if file not in read]

    def read_episodes(self, path: Path) -> Iterator[Episode | UnreadableRecord]:
        metadata_path, metadata = path.with_name(_METADATA_FILE), {}
        try:
            metadata = require_object(
                from_json(metadata_path.read_bytes().removeprefix(BOM_UTF8)), "the file"
            )
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            reason = f"{error}; model and environment of these episodes are unknown"
            yield UnreadableRecord(metadata_path, None, reason)
        yield from read_jsonl(path, partial(_parse_openenv_line, metadata))


def _parse_openenv_line(metadata: JsonObject, line: JsonObject) -> Iterator[Episode]:
    if "messages" not in line:
        raise FormatError("it has no messages")
    extra = require_object(line.get("extra") or {}, "extra")
    task, done = line.get("task"), bool(line.get("done"))
    agent, reward_names = ("provider", "model", "temperature"), extra.get("rewards")
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
        agent={name: metadata[name] for name in agent if metadata.get(name) is not None},
        # Files that Ludus wrote list the metrics that are parts of the reward. In other files
        # they are called a reward or a score.
        rewards={
            name: value
            for name, value in as_numbers(as_object(line.get("verify_metrics"))).items()
            if (
                name in reward_names
                if isinstance(reward_names, list)
                else _REWARD_WORDS.intersection(name.lower().replace("/", "_").split("_"))
            )
        },
        done=done,
        # OpenEnv also sets `done` if the model answers without a call; otherwise turns ran out.
        stop_reason=None if done else StopReason.MAX_TURNS,
    )
    yield restore_fields(episode, extra.get(EXTRA_KEY))
