"""Checkpoints on disk: which are complete, and the counters that transformers does not save.

out/checkpoints/checkpoint-120/    as transformers writes it
  whole.json                       written last, with the checksums of all other files
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ludus.data.files import Checksum, write_atomically
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

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
    files: dict[str, Checksum] = field(default_factory=dict)
    """The files of the checkpoint."""


def mark_complete(checkpoint: Path, state: CheckpointState) -> None:
    """Write the state file, which marks the checkpoint as complete, with checksums of its files."""
    files = {
        file.relative_to(checkpoint).as_posix(): Checksum.of_file(file)
        for file in sorted(checkpoint.rglob("*"))
        if file.is_file() and file.name != _STATE_FILE
    }
    write_atomically(checkpoint / _STATE_FILE, json.dumps(asdict(replace(state, files=files))))


def read_state(checkpoint: Path) -> CheckpointState | None:
    """The state of a checkpoint; None if it is incomplete."""
    try:
        state = CheckpointState(**json.loads((checkpoint / _STATE_FILE).read_bytes()))
        return replace(state, files={name: Checksum(*each) for name, each in state.files.items()})
    except (OSError, ValueError, TypeError):
        return None


def latest_checkpoint(out: Path) -> Path | None:
    """The complete checkpoint with the highest step; its files are not checked."""
    return next((path for path in _list_checkpoints(out) if read_state(path) is not None), None)


def find_intact_step(out: Path) -> tuple[int | None, list[str]]:
    """The highest step with a complete checkpoint whose files are as they were written.

    Also returned is what is wrong with later ones, except for those that a killed run left
    half-written.
    """
    damages = []
    for path in _list_checkpoints(out):
        if (damage := _find_damage(path)) is not None:
            damages.append(f"{path} is damaged: {damage}")
        elif read_state(path) is not None:
            return _step_of(path), damages
    return None, damages


def remove_unusable(out: Path, step: int | None) -> None:
    """Remove half-written checkpoints and all after this step, which are damaged."""
    for path in _list_checkpoints(out):
        if read_state(path) is None or step is None or _step_of(path) > step:
            shutil.rmtree(path, ignore_errors=True)


def remove_before(out: Path, step: int) -> None:
    """Remove the checkpoints before this step."""
    for path in _list_checkpoints(out):
        if _step_of(path) < step:
            shutil.rmtree(path, ignore_errors=True)


def checkpoint_folder(out: Path, step: int) -> Path:
    return out / CHECKPOINTS_DIR / f"{_PREFIX}{step}"


def start_rows_path(out: Path) -> Path:
    """Where a GRPO run keeps the tokens that its start model sampled on held-out tasks."""
    return out / CHECKPOINTS_DIR / "start-rows.json"


def _find_damage(checkpoint: Path) -> str | None:
    """Which file of a complete checkpoint is not as it was written."""
    if not (checkpoint / _STATE_FILE).is_file():
        return None
    if (state := read_state(checkpoint)) is None:
        return f"{_STATE_FILE} cannot be read"
    for name, checksum in state.files.items():
        file = checkpoint / name
        if not file.is_file():
            return f"{name} is missing"
        try:
            found = Checksum.of_file(file)
        except RunError:
            return f"{name} cannot be read"
        if found.size != checksum.size:
            return f"{name} has {found.size:,} of {checksum.size:,} bytes"
        if found != checksum:
            return f"{name} has changed"
    return None


def _list_checkpoints(out: Path) -> list[Path]:
    """All checkpoints, from the last step to the first."""
    paths = (path for path in (out / CHECKPOINTS_DIR).glob(f"{_PREFIX}*") if path.is_dir())
    return sorted(paths, key=_step_of, reverse=True)


def _step_of(checkpoint: Path) -> int:
    number = checkpoint.name.removeprefix(_PREFIX)
    return int(number) if number.isdecimal() else -1
