"""The folder that a data set is written into."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from ludus.data.atomic_write import atomic_dir, existing_files
from ludus.errors import RunError

METADATA_FILE = "curation.json"
CARD_FILE = "README.md"
DATASET_FILES = (
    *(f"{side}{end}" for side in ("train", "test") for end in (".jsonl", ".parquet", "")),
    *(METADATA_FILE, CARD_FILE, "left_out.jsonl", "dataset_dict.json"),
)
"""All that a data set can consist of."""
_DRAFT_PREFIX = ".curating-"


def open_output_dir(out: Path, *, overwrite: bool = False) -> AbstractContextManager[Path]:
    """A draft folder; what is in it when the work is done goes to `out`."""
    _check_writable(out, overwrite=overwrite)
    return atomic_dir(out, _DRAFT_PREFIX, marker=METADATA_FILE, owned=DATASET_FILES)


def _check_writable(out: Path, *, overwrite: bool) -> None:
    """Whether a data set may be written there. What is not ours is never touched."""
    if not out.exists():
        return
    if not out.is_dir():
        raise RunError(f"{out} is a file, and a data set needs a folder. Use another -o.")
    names = existing_files(out, _DRAFT_PREFIX)
    # One that was killed while it moved its files may have left all but the last.
    if METADATA_FILE in names or (names and set(names) <= {*DATASET_FILES}):
        if not overwrite:
            raise RunError(f"{out} holds a data set already. Use --overwrite, or another -o.")
    elif names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise RunError(
            f"{out} is not empty ({names[0]}{more}) and holds no data set of Ludus. Use another -o."
        )
