"""Splits of an environment's tasks by what identifies a task, so that no two share one.

Seeds do not identify tasks: 128 seeds that no training has used may have the words of a list that
it knows. A task is identified by the environment's `task_key()`, or else by its first observation.
A hash of that decides the split: every stage knows it without knowing what others have played.
"""

from __future__ import annotations

from typing import Literal

from ludus.data.files import stable_hash

Split = Literal["train", "validation", "test"]
"""Tasks to train on, to select models by, and to judge the selected model by."""
TaskChoice = Literal["train", "validation", "test", "all"]
"""A split, or all tasks."""
_SHARES = 8
"""One in so many tasks is for validation, one for the test, and the others are for training."""


def key_digest(key: str) -> str:
    """What the wire has of a key, which may be the answer of a task."""
    return f"{stable_hash(key):016x}"


def split_of(digest: str) -> Split:
    """The split of the task whose key has this digest."""
    share = int(digest, 16) % _SHARES
    return "test" if share == 0 else "validation" if share == 1 else "train"
