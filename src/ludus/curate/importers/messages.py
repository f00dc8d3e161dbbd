"""Any JSONL whose lines have `messages` and a reward: the common ground of all tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ludus.curate.importers.chat import messages_of, tools_of
from ludus.curate.importers.making import episode_of
from ludus.curate.importers.reading import Malformed, Unreadable, a_number, each_line
from ludus.data.episode import Episode
from ludus.data.tools import JsonObject

_MESSAGES = ("messages", "conversations", "conversation")
_REWARDS = ("reward", "score")


def read(path: Path) -> Iterator[Episode | Unreadable]:
    return each_line(path, _episode)


def _episode(line: JsonObject) -> Iterator[Episode]:
    said = next((line[name] for name in _MESSAGES if name in line), None)
    if said is None:
        raise Malformed("there are no messages in it")
    reward = next((line[name] for name in _REWARDS if name in line), None)
    task = line.get("task")
    yield episode_of(
        episode_id=str(line.get("episode_id") or line.get("id") or ""),
        environment=str(line.get("environment") or "messages"),
        task=task if isinstance(task, dict) else {"task": task} if task is not None else None,
        messages=messages_of(said),
        tools=tools_of(line.get("tools")),
        reward=a_number(reward, "reward"),
    )
