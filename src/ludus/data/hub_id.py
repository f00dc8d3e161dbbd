"""Tell an id on the Hub (`org/name`) from a local path.

A path with a typo looks like an id, and looking it up on the Hub takes seconds of retries. So names
that look like a local path are never looked up.
"""

from __future__ import annotations

from pathlib import Path

HUB_ORIGIN = "https://huggingface.co"
"""The site that shows a Space in a frame."""
LOCAL_FOLDERS = frozenset(
    ("checkpoints", "data", "evals", "models", "out", "output", "outputs", "runs")
)
"""Folder names used by Ludus' commands and by most projects; none is an organization on the Hub."""


def is_hub_id(name: str, *, file_suffixes: tuple[str, ...] = ()) -> bool:
    """Whether `name` may be looked up on the Hub: `org/name`, or a single word.

    False if it begins like a path, ends with one of `file_suffixes`, or its first part is a
    folder here or usually is one (`models/wordle`).
    """
    folder, _, rest = name.partition("/")
    if (
        not folder
        or not name
        or name.startswith((".", "~"))
        or name.endswith(("/", *file_suffixes))
    ):
        return False
    if not rest:
        return True
    return "/" not in rest and folder not in LOCAL_FOLDERS and not Path(folder).is_dir()
