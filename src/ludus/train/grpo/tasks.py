"""The tasks of a run as rows of a data set, which is all that TRL knows of them.

A row is the number of a task in the plan. TRL repeats it for every member of a group; which task
and which seed that is, the plan says, so all members get the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_WORD = "task "
FIRST_SPARE = 1_000_000_000
"""More tasks than any run has, however often it is extended."""


def tasks(count: int) -> Any:
    """So many tasks, in their order."""
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [f"{_WORD}{number}" for number in range(count)]})


def numbers_of(prompts: Sequence[str]) -> list[int]:
    """Which tasks a batch asks for."""
    return [int(prompt.removeprefix(_WORD)) for prompt in prompts]


def spare(step: int, round: int, group: int, *, groups: int, rounds: int) -> int:
    """The number of a task behind all others, to replace one with: never the same one twice, and
    the same one when a run is gone on with or extended."""
    return FIRST_SPARE + (step * rounds + round) * groups + group
