"""Checkpoints on the disk: which are whole, and what must be known besides the weights to go on.

    out/checkpoints/checkpoint-120/    as transformers writes it
      whole.json                       written last: without it the rest may be half of a file

Files only. When one is due is `ludus.train.pace`'s business, writing the weights the trainer's.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

FOLDER = "checkpoints"
_PREFIX = "checkpoint-"
_MARK = "whole.json"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the figures stood: what was summed up and not logged yet, and what was counted."""

    step: int
    tokens: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    """Summed over the steps since the last logged one."""
    logged: int = 0
    """The last logged step."""
    metrics: dict[str, list[float]] = field(default_factory=dict)
    episodes: int = 0
    """Bytes of the episodes that had been played."""


def mark_whole(checkpoint: Path, standing: Standing) -> None:
    """Say that all of it is on the disk."""
    draft = checkpoint / f".{_MARK}.draft"
    with draft.open("w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(standing)))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(checkpoint / _MARK)


def standing_of(checkpoint: Path) -> Standing | None:
    """Where the figures stood; None where the checkpoint is not whole."""
    try:
        return Standing(**json.loads((checkpoint / _MARK).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def newest(out: Path) -> Path | None:
    """The last whole checkpoint of a run, by its step."""
    found = [(standing.step, path) for path in _all(out) if (standing := standing_of(path))]
    return max(found)[1] if found else None


def sweep(out: Path) -> None:
    """Remove what a killed run left half-written, before a new one is written beside it."""
    for path in _all(out):
        if standing_of(path) is None:
            shutil.rmtree(path, ignore_errors=True)


def _all(out: Path) -> list[Path]:
    return [path for path in (out / FOLDER).glob(f"{_PREFIX}*") if path.is_dir()]
