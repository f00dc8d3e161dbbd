"""Contamination: tasks that a candidate may have been trained on are left out of an evaluation.

Small task spaces repeat themselves: another seed may give the same question again. Questions are
compared by their exact text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic_core import from_json

from ludus.data.json_files import numbered_lines
from ludus.data.messages import prompt_text
from ludus.errors import ConfigError, RunError
from ludus.evaluation.metrics import Attempt

DATA_FILES = ("train.jsonl", "episodes.jsonl")
_MIN_TASKS = 4
"""Tasks of an environment that are needed to call a prompt common to them."""


@dataclass(frozen=True, slots=True)
class KnownQuestions:
    """The prompts and tasks of a data set."""

    prompts: frozenset[str]
    tasks: frozenset[str]
    common_prompts: frozenset[str] = frozenset()
    """Prompts shared by most tasks of an environment, which identify none of them."""


class _Question(NamedTuple):
    environment: str
    task: str | None
    prompt: str


def load_known_questions(source: Path) -> KnownQuestions:
    """Load the questions of a curated data set, a run, or a file of rows or episodes."""
    files = [source / name for name in DATA_FILES] if source.is_dir() else [source]
    file = next((file for file in files if file.is_file()), None)
    if file is None or file.suffix == ".parquet":
        raise ConfigError(
            f"`exclude_tasks_in` must be a JSONL file or a folder with {' or '.join(DATA_FILES)}, "
            f"got {source}. `ludus curate --format jsonl` writes such a folder."
        )
    questions = []
    for number, line in numbered_lines(file):
        try:
            row = from_json(line)
            messages = row["prompt"] if "prompt" in row else row["messages"]
            task = row.get("group_id")
            question = _Question(
                environment=str(row.get("environment")),
                task=task if isinstance(task, str) else None,
                # As `Attempt.prompt` has it for episodes.
                prompt=prompt_text(messages, image_text="[image]"),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{file}:{number} has neither messages nor a prompt.") from None
        questions.append(question)
    with_task = [question for question in questions if question.task is not None]
    common = _common_prompts(with_task, min_tasks=2)
    return KnownQuestions(
        prompts=frozenset(question.prompt for question in questions),
        tasks=frozenset(question.task for question in with_task if question.task is not None),
        common_prompts=frozenset(prompt for _, prompt in common),
    )


def exclude_known(attempts: Sequence[Attempt], known: KnownQuestions) -> list[Attempt]:
    """Return the attempts whose task and prompt are not known.

    Where most tasks of an environment have the same prompt, as in a game whose secret is not
    shown, the prompt identifies nothing, and only the task id counts.
    """
    common = _common_prompts(attempts, min_tasks=_MIN_TASKS)
    return [
        attempt
        for attempt in attempts
        if attempt.task not in known.tasks
        and (attempt.prompt not in known.prompts or _is_ambiguous(attempt, common, known))
    ]


def find_ambiguous_environments(attempts: Sequence[Attempt], known: KnownQuestions) -> list[str]:
    """Return the environments whose prompts do not identify their tasks."""
    common = _common_prompts(attempts, min_tasks=_MIN_TASKS)
    return sorted({each.environment for each in attempts if _is_ambiguous(each, common, known)})


def _is_ambiguous(attempt: Attempt, common: set[tuple[str, str]], known: KnownQuestions) -> bool:
    return (attempt.environment, attempt.prompt) in common or attempt.prompt in known.common_prompts


def _common_prompts(
    questions: Iterable[_Question | Attempt], *, min_tasks: int
) -> set[tuple[str, str]]:
    """Return the prompts of more than half of an environment's tasks, with the environment.

    A prompt that merely occurs twice is not common: small task spaces repeat their questions.
    """
    tasks: defaultdict[str, set[str | None]] = defaultdict(set)
    tasks_by_prompt: defaultdict[tuple[str, str], set[str | None]] = defaultdict(set)
    for question in questions:
        tasks[question.environment].add(question.task)
        tasks_by_prompt[question.environment, question.prompt].add(question.task)
    return {
        (environment, prompt)
        for (environment, prompt), with_prompt in tasks_by_prompt.items()
        if len(tasks[environment]) >= min_tasks and len(with_prompt) > len(tasks[environment]) / 2
    }
