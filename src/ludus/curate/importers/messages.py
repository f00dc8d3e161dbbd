"""Any JSONL whose lines have `messages` and a reward: the common ground of all tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ludus.curate.importers.chat import messages_of, tools_of
from ludus.curate.importers.making import episode_of
from ludus.curate.importers.reading import Malformed, Unreadable, a_number, each_line
from ludus.data.episode import Episode
from ludus.data.tools import JsonObject
from ludus.errors import RunError

_MESSAGES = ("messages", "conversations", "conversation")
_REWARDS = ("reward", "score")


def files(path: Path) -> list[Path]:
    """The file that is named, or every .jsonl file in a folder."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.jsonl"))
    if not found:
        raise RunError(f"There is no .jsonl file in {path}. Name the file itself.")
    return found


def others(path: Path) -> list[Path]:
    """The files of a folder that are not read."""
    if not path.is_dir():
        return []
    return sorted(file for file in path.iterdir() if file.is_file() and file.suffix != ".jsonl")


def read(path: Path) -> Iterator[Episode | Unreadable]:
    return each_line(path, _episode)


def _episode(line: JsonObject) -> Iterator[Episode]:
    reward = next((line[name] for name in _REWARDS if name in line), None)
    task = line.get("task")
    yield episode_of(
        episode_id=str(line.get("episode_id") or line.get("id") or ""),
        environment=str(line.get("environment") or "messages"),
        task=task if isinstance(task, dict) else {"task": task} if task is not None else None,
        messages=messages_of(_said(line)),
        tools=tools_of(line.get("tools")),
        reward=a_number(reward, "reward"),
    )


def _said(line: JsonObject) -> Any:
    """The conversation, under whichever name, or in two parts as trainers have it."""
    for name in _MESSAGES:
        if name in line:
            return line[name]
    if "prompt" not in line or "completion" not in line:
        raise Malformed("there are neither messages in it nor a prompt and a completion")
    return [*_turns(line["prompt"], "user"), *_turns(line["completion"], "assistant")]


def _turns(value: Any, role: str) -> list[Any]:
    return value if isinstance(value, list) else [{"role": role, "content": value}]
