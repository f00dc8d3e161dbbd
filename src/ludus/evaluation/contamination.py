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

from ludus.data.episode_reader import numbered_lines
from ludus.errors import ConfigError, RunError
from ludus.evaluation.attempts import Attempt

DATA_FILES = ("train.jsonl", "episodes.jsonl")
_MIN_TASKS = 4
"""With fewer tasks than this, nothing can be said about what all of them share."""


@dataclass(frozen=True, slots=True)
class KnownQuestions:
    """What a data set asks."""

    prompts: frozenset[str]
    tasks: frozenset[str]
    common_prompts: frozenset[str] = frozenset()
    """Openings that most of its tasks in an environment have, so that they tell none of them."""


class _Question(NamedTuple):
    environment: str
    task: str | None
    prompt: str


def load_known_questions(source: Path) -> KnownQuestions:
    """The questions and tasks of a curated data set, a run, or a file of rows or episodes."""
    rows = list(_read_questions(source))
    named = (row for row in rows if row.task is not None)
    return KnownQuestions(
        prompts=frozenset(row.prompt for row in rows),
        tasks=frozenset(row.task for row in rows if row.task is not None),
        common_prompts=frozenset(opening for _, opening in _common_prompts(named, min_tasks=2)),
    )


def exclude_known(attempts: Sequence[Attempt], known: KnownQuestions) -> list[Attempt]:
    """The attempts at tasks that are not known.

    Where most tasks of an environment open with the same words, as a game's do whose secret is
    not shown, the words tell nothing, and the task itself decides.
    """
    common = _common_prompts(attempts, min_tasks=_MIN_TASKS)
    return [
        attempt
        for attempt in attempts
        if attempt.task not in known.tasks
        and (attempt.prompt not in known.prompts or _is_ambiguous(attempt, common, known))
    ]


def find_ambiguous_environments(attempts: Sequence[Attempt], known: KnownQuestions) -> list[str]:
    """The environments whose openings are no questions that could be compared with the data's."""
    common = _common_prompts(attempts, min_tasks=_MIN_TASKS)
    return sorted({each.environment for each in attempts if _is_ambiguous(each, common, known)})


def _is_ambiguous(attempt: Attempt, common: set[tuple[str, str]], known: KnownQuestions) -> bool:
    return (attempt.environment, attempt.prompt) in common or attempt.prompt in known.common_prompts


def _common_prompts(
    asked: Iterable[_Question | Attempt], *, min_tasks: int
) -> set[tuple[str, str]]:
    """The openings of more than half of an environment's tasks, where those are not too few.

    That one is asked twice is not enough: small task spaces repeat their questions.
    """
    tasks: defaultdict[str, set[str | None]] = defaultdict(set)
    opened: defaultdict[tuple[str, str], set[str | None]] = defaultdict(set)
    for each in asked:
        tasks[each.environment].add(each.task)
        opened[each.environment, each.prompt].add(each.task)
    total = {environment: len(of) for environment, of in tasks.items()}
    return {
        (environment, opening)
        for (environment, opening), of in opened.items()
        if total[environment] >= min_tasks and len(of) > total[environment] / 2
    }


def _read_questions(source: Path) -> Iterator[_Question]:
    file = _find_data_file(source)
    for number, line in numbered_lines(file):
        try:
            row = from_json(line)
            messages = row["prompt"] if "prompt" in row else row["messages"]
            task = row.get("group_id")
            yield _Question(
                environment=str(row.get("environment")),
                task=task if isinstance(task, str) else None,
                prompt=_prompt_text(messages),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{file}:{number} has neither messages nor a prompt.") from None


def _find_data_file(source: Path) -> Path:
    files = [source / name for name in DATA_FILES] if source.is_dir() else [source]
    found = next((file for file in files if file.is_file()), None)
    if found is None or found.suffix == ".parquet":
        raise ConfigError(
            f"--not-in {source} is neither a JSONL file nor a folder with {' or '.join(DATA_FILES)}. "
            "`ludus curate --format jsonl` writes such a folder."
        )
    return found


def _prompt_text(messages: str | Sequence[Mapping[str, Any]]) -> str:
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
