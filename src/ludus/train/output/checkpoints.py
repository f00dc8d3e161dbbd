"""Checkpoints on the disk: which are whole, and what must be known besides the weights to go on.

    out/checkpoints/checkpoint-120/    as transformers writes it
      whole.json                       written last: without it the rest may be half of a file

Files only. When one is due is `ludus.train.callbacks`'s business, writing the weights the trainer's.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ludus.data.atomic_write import write_atomically

CHECKPOINTS_DIR = "checkpoints"
_PREFIX = "checkpoint-"
_STATE_FILE = "whole.json"


@dataclass(frozen=True, slots=True)
class CheckpointState:
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


def mark_complete(checkpoint: Path, state: CheckpointState) -> None:
    """Say that all of it is on the disk."""
    write_atomically(checkpoint / _STATE_FILE, json.dumps(asdict(state)))


def read_state(checkpoint: Path) -> CheckpointState | None:
    """Where the figures stood; None where the checkpoint is not whole."""
    try:
        return CheckpointState(**json.loads((checkpoint / _STATE_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def latest_checkpoint(out: Path) -> Path | None:
    """The last whole checkpoint of a run, by its step."""
    found = [
        (standing.step, path) for path in _list_checkpoints(out) if (standing := read_state(path))
    ]
    return max(found)[1] if found else None


def remove_incomplete(out: Path) -> None:
    """Remove what a killed run left half-written, before a new one is written beside it."""
    for path in _list_checkpoints(out):
        if read_state(path) is None:
            shutil.rmtree(path, ignore_errors=True)


def _list_checkpoints(out: Path) -> list[Path]:
    return [path for path in (out / CHECKPOINTS_DIR).glob(f"{_PREFIX}*") if path.is_dir()]
