"""Attempts at tasks, files of them, and what became of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ludus.curation import CurateConfig, CurateReport, curate
from ludus.curation.catalog import Catalog, open_catalog
from ludus.data.episode import Episode, StopReason
from ludus.data.messages import Call, Function, Message

GUESS: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guess the word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}


def user(text: str) -> Message:
    return Message(role="user", content=text)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def model(text: str = "", *calls: Call, thought: str | None = None) -> Message:
    return Message(
        role="assistant", content=text, reasoning_content=thought, tool_calls=calls or None
    )


def call(name: str, arguments: str | dict[str, Any], id: str = "call_0") -> Call:
    """Arguments as a string are taken as the model wrote them."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return Call(id=id, function=Function(name=name, arguments=text))


def told(text: str, id: str = "call_0") -> Message:
    return Message(role="tool", content=text, tool_call_id=id)


def attempt(
    name: str,
    reward: float | None = 1.0,
    *,
    task: str | None = None,
    messages: Sequence[Message] | None = None,
    **more: Any,
) -> Episode:
    """An attempt whose words are its own, at a task of its own unless one is named."""
    task = f"task of {name}" if task is None else task
    said = (user(f"What is {task}?"), model(f"It is {name}.")) if messages is None else messages
    return Episode(
        **{
            "episode_id": name,
            "stop_reason": StopReason.DONE,
            "reward": reward,
            "environment": "quiz",
            "group_id": task,
            "messages": tuple(said),
            "turns": sum(message.role == "assistant" for message in said),
            **more,
        }
    )


def asked(name: str, question: str, reward: float | None = 1.0, **more: Any) -> Episode:
    """An attempt at a task of its own, which this question asks."""
    return attempt(name, reward, messages=(user(question), model(f"It is {name}.")), **more)


def run_of(folder: Path, *episodes: Episode) -> Path:
    """A run folder; as much of one as curating asks for."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "episodes.jsonl").write_bytes(b"".join(each.to_line() for each in episodes))
    return folder


@contextmanager
def cataloged(folder: Path, *episodes: Episode, where: str | None = None) -> Iterator[Catalog]:
    run = run_of(folder / "run", *episodes)
    with open_catalog([run / "episodes.jsonl"], folder, where=where) as catalog:
        yield catalog


def kept(catalog: Catalog) -> list[str]:
    """The ids of what is left, in the order of the files."""
    rows = catalog.sql("SELECT rowid FROM episodes WHERE reason IS NULL ORDER BY rowid")
    return [json.loads(catalog.read_line(row))["episode_id"] for (row,) in rows]


def curated(folder: Path, *episodes: Episode, **how: Any) -> CurateReport:
    """Curate these episodes into `folder / "out"`."""
    return curate([run_of(folder / "run", *episodes)], folder / "out", CurateConfig(**how))


def rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file; none where there is no such file."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_bytes().splitlines()]
