"""Tell an id on the Hub (`org/name`) from a local path.

A path with a typo looks like an id, and asking the Hub for it costs seconds of retries. So what can
be a path of this folder is never asked for there.
"""

from __future__ import annotations

from pathlib import Path

from ludus.errors import closest_match

LOCAL_FOLDERS = frozenset(
    ("checkpoints", "data", "evals", "models", "out", "output", "outputs", "runs")
)
"""Names that Ludus' own commands and most projects give to folders; no organization has them."""


def is_hub_id(name: str, *, file_suffixes: tuple[str, ...] = ()) -> bool:
    """Whether `name` may be looked up on the Hub: `org/name`, or a single word.

    Not where it begins like a path, ends with one of the file endings `ends`, or its first part is
    a folder here or usually is one (`models/wordle`).
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


def similar_path_hint(name: str) -> str:
    """The end of an error message about a missing path: a neighbour with a similar name, or ''."""
    path = Path(name).expanduser()
    try:
        neighbours = [each.name for each in path.parent.iterdir()]
    except OSError:
        return ""
    close = closest_match(path.name, neighbours)
    return f"Did you mean {str(path.parent / close)!r}?" if close else ""
