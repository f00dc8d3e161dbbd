"""Questions that a candidate may have been trained on: what it says to them proves nothing.

Small task spaces repeat themselves: another seed gives another task, and now and then the same
question. Questions are compared word for word; near copies are the curator's business.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.data.lines import numbered
from ludus.errors import BadSetting, RunError
from ludus.evaluate.attempts import Attempt

FILES = ("train.jsonl", "episodes.jsonl")
_FEW = 4
"""With fewer tasks than this, nothing can be said about what all of them share."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a data set asks."""

    openings: frozenset[str]
    tasks: frozenset[str]


def read_known(source: Path) -> Known:
    """The questions and tasks of a curated data set, a run, or a file of rows or episodes."""
    openings, tasks = set(), set()
    for opening, task in _rows(source):
        openings.add(opening)
        if task is not None:
            tasks.add(task)
    return Known(frozenset(openings), frozenset(tasks))


def unknown(attempts: Sequence[Attempt], known: Known) -> list[Attempt]:
    """The attempts at tasks that are not known.

    Where most tasks open with the same words, as a game's do whose secret is not shown, the words
    tell nothing, and the task itself decides.
    """
    common = _common(attempts)
    return [
        attempt
        for attempt in attempts
        if attempt.task not in known.tasks
        and (attempt.opening in common or attempt.opening not in known.openings)
    ]


def _common(attempts: Iterable[Attempt]) -> set[str]:
    """Openings of more than half of the tasks."""
    tasks: defaultdict[str, set[str]] = defaultdict(set)
    for attempt in attempts:
        tasks[attempt.opening].add(attempt.task)
    total = sum(map(len, tasks.values()))
    return {opening for opening, of in tasks.items() if total >= _FEW and len(of) > total / 2}


def _rows(source: Path) -> Iterator[tuple[str, str | None]]:
    file = _file(source)
    for number, line in numbered(file):
        try:
            row = from_json(line)
            messages = row["prompt"] if "prompt" in row else row["messages"]
            task = row.get("group_id")
            yield _opening(messages), task if isinstance(task, str) else None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{file}:{number} has neither messages nor a prompt.") from None


def _file(source: Path) -> Path:
    files = [source / name for name in FILES] if source.is_dir() else [source]
    found = next((file for file in files if file.is_file()), None)
    if found is None or found.suffix == ".parquet":
        raise BadSetting(
            f"--not-in {source} is neither a JSONL file nor a folder with {' or '.join(FILES)}. "
            "`ludus curate --format jsonl` writes such a folder."
        )
    return found


def _opening(messages: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(messages, str):
        return messages
    asked = []
    for message in messages:
        if message["role"] == "assistant":
            break
        if message["role"] != "system":
            asked.append(_words(message.get("content")))
    return "\n".join(asked)


def _words(content: Any) -> str:
    """As `Message.text` has them, so that a row and an episode of the same task are the same."""
    if not isinstance(content, list):
        return content or ""
    return "\n".join(part["text"] if part["type"] == "text" else "[image]" for part in content)
