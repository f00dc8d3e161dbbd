"""The tasks of a run as rows of a data set, which is all that TRL knows of them.

A row is the number of a task in the plan. TRL repeats it for every member of a group; which task
and which seed that is, the plan says, so all members get the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_PROMPT_PREFIX = "task "
FIRST_SPARE_TASK = 1_000_000_000
"""More tasks than any run has, however often it is extended."""


def build_task_dataset(count: int) -> Any:
    """So many tasks, in their order."""
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [f"{_PROMPT_PREFIX}{number}" for number in range(count)]})


def parse_task_numbers(prompts: Sequence[str]) -> list[int]:
    """Which tasks a batch asks for."""
    return [int(prompt.removeprefix(_PROMPT_PREFIX)) for prompt in prompts]


def spare_task_number(step: int, round: int, group: int, *, groups: int, rounds: int) -> int:
    """The number of a task behind all others, to replace one with: never the same one twice, and
    the same one when a run is gone on with or extended."""
    return FIRST_SPARE_TASK + (step * rounds + round) * groups + group
