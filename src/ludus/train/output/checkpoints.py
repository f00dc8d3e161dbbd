"""Checkpoints on disk: which are complete, and the counters that transformers does not save.

out/checkpoints/checkpoint-120/    as transformers writes it
  whole.json                       written last: without it, files may be truncated
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ludus.data.atomic_write import write_atomically
from ludus.data.tool_schema import JsonObject

CHECKPOINTS_DIR = "checkpoints"
_PREFIX = "checkpoint-"
_STATE_FILE = "whole.json"


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """Counters, and sums that were not logged yet, at the time of a checkpoint."""

    step: int
    tokens: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    """Summed over the steps since the last logged one."""
    logged: int = 0
    """The last logged step."""
    metrics: dict[str, list[float]] = field(default_factory=dict)
    episodes: int = 0
    """Size of the episode log in bytes."""
    rollbacks: int = 0
    """How often GRPO went back to its best model."""
    trust_factor: float = 1.0
    """The factor of the learning rate that GRPO's trust region has found."""
    curriculum: JsonObject = field(default_factory=dict)
    """What GRPO's curriculum knows of its buckets."""


def mark_complete(checkpoint: Path, state: CheckpointState) -> None:
    """Write the state file, which marks the checkpoint as complete."""
    write_atomically(checkpoint / _STATE_FILE, json.dumps(asdict(state)))


def read_state(checkpoint: Path) -> CheckpointState | None:
    """The state of a checkpoint; None if it is incomplete."""
    try:
        return CheckpointState(**json.loads((checkpoint / _STATE_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def latest_checkpoint(out: Path) -> Path | None:
    """The complete checkpoint with the highest step."""
    paths = _list_checkpoints(out)
    complete = [(state.step, path) for path in paths if (state := read_state(path))]
    return max(complete)[1] if complete else None


def remove_incomplete(out: Path) -> None:
    """Remove checkpoints that a killed run left half-written."""
    for path in _list_checkpoints(out):
        if read_state(path) is None:
            shutil.rmtree(path, ignore_errors=True)


def start_rows_path(out: Path) -> Path:
    """Where a GRPO run keeps the tokens that its start model sampled on held-out tasks."""
    return out / CHECKPOINTS_DIR / "start-rows.json"


def _list_checkpoints(out: Path) -> list[Path]:
    return [path for path in (out / CHECKPOINTS_DIR).glob(f"{_PREFIX}*") if path.is_dir()]
