"""Splits of an environment's tasks by what identifies a task, so that no task is in two splits.

Seeds do not identify tasks: a seed that training has not used may draw a word that training has
seen. A task is identified by the environment's `task_key()`, or else by its first observation.
A hash of that decides the split, so every stage knows it without knowing what others have played.
"""

from __future__ import annotations

from typing import Literal

from ludus.data.files import stable_hash

Split = Literal["train", "validation", "test"]
"""Tasks to train on, to select models by, and to judge the selected model by."""
TaskChoice = Literal["train", "validation", "test", "all"]
"""A split, or all tasks."""
_SHARES = 8
"""One in this many tasks is for validation, one is for the test, and the others for training."""


def key_digest(key: str) -> str:
    """Hash a key to send it over the wire: the key itself may be the answer of a task."""
    return f"{stable_hash(key):016x}"


def split_of(digest: str) -> Split:
    """The split of the task whose key has this digest."""
    share = int(digest, 16) % _SHARES
    return "test" if share == 0 else "validation" if share == 1 else "train"
