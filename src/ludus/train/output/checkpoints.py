"""Checkpoints on disk: which are complete, and the counters that transformers does not save.

out/checkpoints/
  checkpoint-120/          as transformers writes it
    state.json             written last, with the sizes of all other files
  best/                    the trained weights of GRPO's best model so far
    weights.safetensors
    state.json             its step and its reward on held-out tasks
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.data.files import write_atomically
from ludus.data.tool_schema import JsonObject
from ludus.train.distributed import set_weight

if TYPE_CHECKING:
    from torch import nn

CHECKPOINTS_DIR = "checkpoints"
MAX_CHECKPOINTS = 2
"""Checkpoints on disk: the latest, and the one before, in case the latest is incomplete."""
_PREFIX = "checkpoint-"
_BEST_DIR = "best"
STATE_FILE = "state.json"
_WEIGHTS_FILE = "weights.safetensors"


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
    """The buckets of GRPO's curriculum."""
    files: dict[str, int] = field(default_factory=dict)
    """The files of the checkpoint, with their sizes in bytes."""


def mark_complete(checkpoint: Path, state: CheckpointState) -> None:
    """Write the state file, which marks the checkpoint as complete, with the sizes of its files."""
    files = {
        file.relative_to(checkpoint).as_posix(): file.stat().st_size
        for file in checkpoint.rglob("*")
        if file.is_file() and file.name != STATE_FILE
    }
    write_atomically(checkpoint / STATE_FILE, json.dumps(asdict(replace(state, files=files))))


def read_state(checkpoint: Path) -> CheckpointState | None:
    """Read the state of a checkpoint; None if a file is missing or truncated."""
    try:
        state = CheckpointState(**json.loads((checkpoint / STATE_FILE).read_bytes()))
        sizes = [(checkpoint / name).stat().st_size for name in state.files]
        return state if sizes == list(state.files.values()) else None
    except (OSError, ValueError, TypeError):
        return None


def latest_checkpoint(out: Path) -> Path | None:
    """The complete checkpoint with the highest step."""
    return next((path for path in _list_checkpoints(out) if read_state(path) is not None), None)


def remove_unusable(out: Path, step: int | None) -> None:
    """Remove incomplete checkpoints and all after this step."""
    for path in _list_checkpoints(out):
        if read_state(path) is None or step is None or step_of(path) > step:
            shutil.rmtree(path, ignore_errors=True)


def checkpoint_folder(out: Path, step: int) -> Path:
    return out / CHECKPOINTS_DIR / f"{_PREFIX}{step}"


def _list_checkpoints(out: Path) -> list[Path]:
    """All checkpoints, from the last step to the first."""
    paths = (path for path in (out / CHECKPOINTS_DIR).glob(f"{_PREFIX}*") if path.is_dir())
    return sorted(paths, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    number = checkpoint.name.removeprefix(_PREFIX)
    return int(number) if number.isdecimal() else -1


@dataclass(frozen=True, slots=True)
class BestModel:
    """The step after which a GRPO run's model was best on its held-out tasks."""

    step: int
    reward: float
    """The mean reward on held-out tasks."""


def read_best(out: Path) -> BestModel | None:
    """The best checkpoint so far; None if there is none."""
    try:
        return BestModel(**json.loads((best_model_folder(out) / STATE_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def save_best(out: Path, model: nn.Module, best: BestModel) -> None:
    """Replace the best checkpoint by the current weights."""
    from safetensors.torch import save_file

    folder = best_model_folder(out)
    draft = folder.with_name(f".{_BEST_DIR}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    weights = {
        name: weight.detach().cpu().contiguous()
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }
    save_file(weights, draft / _WEIGHTS_FILE)
    write_atomically(draft / STATE_FILE, json.dumps(asdict(best)))
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)


def load_best(out: Path, model: nn.Module) -> None:
    """Give the model the weights of the best checkpoint."""
    import torch
    from safetensors.torch import load_file

    stored = load_file(best_model_folder(out) / _WEIGHTS_FILE)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                set_weight(weight, stored[name])


def best_model_folder(out: Path) -> Path:
    return out / CHECKPOINTS_DIR / _BEST_DIR
