"""The folder that a data set is written to, and the data set that it held before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from ludus.curation.config import CurateConfig
from ludus.data.files import atomic_dir, existing_files
from ludus.data.stage_output import CURATION_FILE
from ludus.errors import RunError

CARD_FILE = "README.md"
DATASET_FILES = (
    *(f"{split}{suffix}" for split in ("train", "test") for suffix in (".jsonl", ".parquet", "")),
    *(CURATION_FILE, CARD_FILE, "left_out.jsonl", "dataset_dict.json"),
)
"""All files and folders that a data set can consist of."""
_DRAFT_PREFIX = ".curating-"
_READ_BLOCK_BYTES = 1 << 20


def open_output_dir(out: Path, *, overwrite: bool = False) -> AbstractContextManager[Path]:
    """Return a context manager with a draft folder, whose files move to `out` at the end.

    `out` exists and is locked. Raises `RunError` if it holds anything but a data set, or a data
    set and no `overwrite`.
    """
    names = existing_files(out, _DRAFT_PREFIX)
    # A process that was killed while moving its files may have left all but the metadata file.
    if CURATION_FILE in names or (names and set(names) <= {*DATASET_FILES}):
        if not overwrite:
            raise RunError(
                f"{out} already holds a data set. Set `overwrite`, or use another `out`."
            )
    elif names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise RunError(
            f"{out} is not empty ({names[0]}{more}) and not a Ludus data set. Use another `out`."
        )
    return atomic_dir(out, _DRAFT_PREFIX, marker=CURATION_FILE, owned=DATASET_FILES)


def is_rerun(out: Path, config: CurateConfig, runs: Sequence[str], splits: Sequence[str]) -> bool:
    """Whether `out` holds an unchanged data set of the same configuration and runs."""
    digest = _previous_digest(out, config, runs)
    if digest is None or config.format != "jsonl":
        return digest is not None
    files = [out / f"{name}.jsonl" for name in splits]
    return all(file.is_file() for file in files) and hash_output_files(files) == digest


def hash_output_files(files: Iterable[Path]) -> str:
    """Hash names and contents of a data set's files with xxHash, fast enough for gigabytes."""
    import xxhash

    digest, block = xxhash.xxh3_64(), bytearray(_READ_BLOCK_BYTES)
    for path in files:
        digest.update(path.name.encode())
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(block):
                digest.update(memoryview(block)[:size])
    return digest.hexdigest()


def _previous_digest(folder: Path, config: CurateConfig, runs: Sequence[str]) -> str | None:
    """Return the digest of a data set with the same configuration and these runs, or some of them.

    None if the folder holds no such data set.
    """
    try:
        metadata = json.loads((folder / CURATION_FILE).read_bytes())
        is_same = metadata["settings"] == json.loads(json.dumps(config.as_json(), default=str))
        return str(metadata["digest"]) if is_same and set(metadata["runs"]) <= set(runs) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
