"""The folder that a data set is written into: all of it, or nothing.

Everything is written below a hidden folder first and moved into place at the end. Whoever stops
the work, by Ctrl-C or by pulling the plug, leaves no half of a file that looks like a whole one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ludus.errors import RunError

ABOUT = "curation.json"
CARD = "README.md"
_DRAFT = ".curating-"
_OURS = (
    *(f"{side}{end}" for side in ("train", "test") for end in (".jsonl", ".parquet", "")),
    *(ABOUT, CARD, "left_out.jsonl", "dataset_dict.json"),
)


@contextmanager
def written_into(out: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A draft folder; what is in it when the work is done goes to `out`."""
    check(out, overwrite=overwrite)
    draft = None
    try:
        out.mkdir(parents=True, exist_ok=True)
        for left_over in out.glob(f"{_DRAFT}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=out))
        yield draft
        _move(draft, out)
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror or error}.") from error
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
        _remove_if_empty(out)


def check(out: Path, *, overwrite: bool) -> None:
    """Whether a data set may be written there. What is not ours is never touched."""
    if not out.exists():
        return
    if not out.is_dir():
        raise RunError(f"{out} is a file, and a data set needs a folder. Use another -o.")
    names = sorted(file.name for file in out.iterdir() if not file.name.startswith(_DRAFT))
    if ABOUT in names:
        if not overwrite:
            raise RunError(f"{out} holds a data set already. Use --overwrite, or another -o.")
    elif names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise RunError(
            f"{out} is not empty ({names[0]}{more}) and holds no data set of Ludus. Use another -o."
        )


def _move(draft: Path, out: Path) -> None:
    # Without its curation.json a folder holds no data set: so that goes first, and comes last.
    for name in (ABOUT, *(name for name in _OURS if name != ABOUT)):
        old = out / name
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    made = sorted(draft.iterdir(), key=lambda file: file.name == ABOUT)
    for file in made:
        if file.name in _OURS:
            file.replace(out / file.name)


def _remove_if_empty(out: Path) -> None:
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()
