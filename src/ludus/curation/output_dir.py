"""The folder that a data set is written to."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from ludus.data.atomic_write import atomic_dir, existing_files
from ludus.errors import RunError

METADATA_FILE = "curation.json"
CARD_FILE = "README.md"
DATASET_FILES = (
    *(f"{split}{suffix}" for split in ("train", "test") for suffix in (".jsonl", ".parquet", "")),
    *(METADATA_FILE, CARD_FILE, "left_out.jsonl", "dataset_dict.json"),
)
"""All files and folders that a data set can consist of."""
_DRAFT_PREFIX = ".curating-"


def open_output_dir(out: Path, *, overwrite: bool = False) -> AbstractContextManager[Path]:
    """Return a context manager with a draft folder, whose files move to `out` at the end.

    Raises `RunError` if `out` holds anything but a data set, or a data set and no `overwrite`.
    """
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file, but a data set is a folder. Use another `out`.")
    names = existing_files(out, _DRAFT_PREFIX) if out.exists() else []
    # A process that was killed while moving its files may have left all but the metadata file.
    if METADATA_FILE in names or (names and set(names) <= {*DATASET_FILES}):
        if not overwrite:
            raise RunError(
                f"{out} already holds a data set. Set `overwrite`, or use another `out`."
            )
    elif names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise RunError(
            f"{out} is not empty ({names[0]}{more}) and not a Ludus data set. Use another `out`."
        )
    return atomic_dir(out, _DRAFT_PREFIX, marker=METADATA_FILE, owned=DATASET_FILES)
