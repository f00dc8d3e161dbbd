"""Questions that a candidate may have been trained on: what it says to them proves nothing.

Small task spaces repeat themselves: another seed gives another task, and now and then the same
question. Questions are compared word for word; near copies are the curator's business.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from ludus.data.lines import numbered_lines
from ludus.errors import ConfigError, RunError
from ludus.evaluate.attempts import Attempt

FILES = ("train.jsonl", "episodes.jsonl")
_FEW = 4
"""With fewer tasks than this, nothing can be said about what all of them share."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a data set asks."""

    prompts: frozenset[str]
    tasks: frozenset[str]
    alike: frozenset[str] = frozenset()
    """Openings that most of its tasks in an environment have, so that they tell none of them."""


class _Asked(NamedTuple):
    environment: str
    task: str | None
    opening: str


def read_known(source: Path) -> Known:
    """The questions and tasks of a curated data set, a run, or a file of rows or episodes."""
    rows = list(_rows(source))
    named = (row for row in rows if row.task is not None)
    return Known(
        prompts=frozenset(row.opening for row in rows),
        tasks=frozenset(row.task for row in rows if row.task is not None),
        alike=frozenset(opening for _, opening in _common(named, few=2)),
    )


def unknown(attempts: Sequence[Attempt], known: Known) -> list[Attempt]:
    """The attempts at tasks that are not known.

    Where most tasks of an environment open with the same words, as a game's do whose secret is
    not shown, the words tell nothing, and the task itself decides.
    """
    common = _common(attempts, few=_FEW)
    return [
        attempt
        for attempt in attempts
        if attempt.task not in known.tasks
        and (attempt.opening not in known.prompts or _tells_nothing(attempt, common, known))
    ]


def told_by_task_alone(attempts: Sequence[Attempt], known: Known) -> list[str]:
    """The environments whose openings are no questions that could be compared with the data's."""
    common = _common(attempts, few=_FEW)
    return sorted({each.environment for each in attempts if _tells_nothing(each, common, known)})


def _tells_nothing(attempt: Attempt, common: set[tuple[str, str]], known: Known) -> bool:
    return (attempt.environment, attempt.opening) in common or attempt.opening in known.alike


def _common(asked: Iterable[_Asked | Attempt], *, few: int) -> set[tuple[str, str]]:
    """The openings of more than half of an environment's tasks, where those are not too few.

    That one is asked twice is not enough: small task spaces repeat their questions.
    """
    tasks: defaultdict[str, set[str | None]] = defaultdict(set)
    opened: defaultdict[tuple[str, str], set[str | None]] = defaultdict(set)
    for each in asked:
        tasks[each.environment].add(each.task)
        opened[each.environment, each.opening].add(each.task)
    total = {environment: len(of) for environment, of in tasks.items()}
    return {
        (environment, opening)
        for (environment, opening), of in opened.items()
        if total[environment] >= few and len(of) > total[environment] / 2
    }


def _rows(source: Path) -> Iterator[_Asked]:
    file = _file(source)
    for number, line in numbered_lines(file):
        try:
            row = from_json(line)
            messages = row["prompt"] if "prompt" in row else row["messages"]
            task = row.get("group_id")
            yield _Asked(
                environment=str(row.get("environment")),
                task=task if isinstance(task, str) else None,
                opening=_opening(messages),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{file}:{number} has neither messages nor a prompt.") from None


def _file(source: Path) -> Path:
    files = [source / name for name in FILES] if source.is_dir() else [source]
    found = next((file for file in files if file.is_file()), None)
    if found is None or found.suffix == ".parquet":
        raise ConfigError(
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
            asked.append(_content_text(message.get("content")))
    return "\n".join(asked)


def _content_text(content: Any) -> str:
    """As `Message.text` has them, so that a row and an episode of the same task are the same."""
    if not isinstance(content, list):
        return content or ""
    return "\n".join(part["text"] if part["type"] == "text" else "[image]" for part in content)
