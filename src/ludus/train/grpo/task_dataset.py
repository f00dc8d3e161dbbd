"""The tasks of a run as the data set of TRL's trainer.

A row is the number of a task in the rollout plan. TRL repeats each row for every member of a group,
and the plan maps the number to an environment and a seed, so that all members get the same task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_PROMPT_PREFIX = "task "
FIRST_SPARE_TASK = 1_000_000_000
"""Above the number of tasks of any run, however often it is extended."""


def build_task_dataset(count: int) -> Any:
    """Tasks 0 to `count` - 1, in order."""
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [f"{_PROMPT_PREFIX}{number}" for number in range(count)]})


def parse_task_numbers(prompts: Sequence[str]) -> list[int]:
    return [int(prompt.removeprefix(_PROMPT_PREFIX)) for prompt in prompts]


def spare_task_number(step: int, round: int, group: int, *, groups: int, rounds: int) -> int:
    """The task that replaces a group's task in a resampling round.

    It is different for every step, round and group, and the same when a run is resumed or extended.
    """
    return FIRST_SPARE_TASK + (step * rounds + round) * groups + group
