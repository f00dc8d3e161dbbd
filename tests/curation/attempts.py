"""Builders of episodes and run folders, and readers of curated rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasets import load_dataset

from ludus.curation import CurateConfig, CurateReport, curate
from ludus.curation.catalog import Catalog
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
FABLE = (
    "A fox {} sees some grapes that hang high on a vine over the wall of a garden. It jumps again "
    "and again, and cannot reach them; in the end it walks off and says that they were sour anyway."
    " Tell in two sentences what the fox ought to have done before it gave up, and why."
)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def model(text: str = "", *calls: Call, reasoning: str | None = None) -> Message:
    return Message(
        role="assistant", content=text, reasoning_content=reasoning, tool_calls=calls or None
    )


def call(name: str, arguments: str | dict[str, Any], id: str = "call_0") -> Call:
    """Build a call; arguments in a string are taken as the model wrote them."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return Call(id=id, function=Function(name=name, arguments=text))


def tool_result(text: str, id: str = "call_0") -> Message:
    return Message(role="tool", content=text, tool_call_id=id)


def attempt(
    name: str,
    reward: float | None = 1.0,
    *,
    task: str | None = None,
    messages: Sequence[Message] | None = None,
    **more: Any,
) -> Episode:
    """Build an episode with a unique reply, at a task of its own unless one is named."""
    task = f"task of {name}" if task is None else task
    if messages is None:
        messages = (user(f"What is {task}?"), model(f"It is {name}."))
    return Episode(
        **{
            "episode_id": name,
            "stop_reason": StopReason.DONE,
            "reward": reward,
            "environment": "quiz",
            "group_id": task,
            "messages": tuple(messages),
            "turns": sum(message.role == "assistant" for message in messages),
            **more,
        }
    )


def attempt_at(name: str, question: str, reward: float | None = 1.0, **more: Any) -> Episode:
    """Build an attempt at a task of its own with this prompt."""
    return attempt(name, reward, messages=(user(question), model(f"It is {name}.")), **more)


def write_run(folder: Path, *episodes: Episode) -> Path:
    """Write the episodes of a run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "episodes.jsonl").write_bytes(b"".join(each.to_line() for each in episodes))
    return folder


@contextmanager
def build_catalog(folder: Path, *episodes: Episode, where: str | None = None) -> Iterator[Catalog]:
    run = write_run(folder / "run", *episodes)
    with Catalog.open([run / "episodes.jsonl"], folder, where=where) as catalog:
        yield catalog


def kept_ids(catalog: Catalog) -> list[str]:
    """Return the ids of the kept episodes, in the order of the files."""
    rows = catalog.sql("SELECT rowid FROM episodes WHERE reason IS NULL ORDER BY rowid")
    return [json.loads(catalog.read_line(row))["episode_id"] for (row,) in rows]


def curate_episodes(folder: Path, *episodes: Episode, **how: Any) -> CurateReport:
    """Curate these episodes into `folder / "out"`."""
    return curate([write_run(folder / "run", *episodes)], folder / "out", CurateConfig(**how))


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL file; none if it does not exist."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def to_parquet(folder: Path) -> None:
    """Convert the JSONL files of a data set by the columns that its card declares."""
    loaded = load_dataset(str(folder), cache_dir=str(folder / "cache"))
    for split in loaded:
        loaded[split].to_parquet(folder / f"{split}.parquet")
        (folder / f"{split}.jsonl").unlink()
    shutil.rmtree(folder / "cache")


def many(count: int, attempts: int = 2) -> list[Episode]:
    return [
        attempt(f"{task}-{number}", task=f"task{task}")
        for task in range(count)
        for number in range(attempts)
    ]
