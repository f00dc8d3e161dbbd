"""The best model of a GRPO run so far: its trained weights, on disk.

out/checkpoints/best/
  weights.safetensors    the trained weights (of an adapter, only those)
  best.json              step, held-out reward and checksum of the weights; written last
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ludus.data.files import Checksum, write_atomically
from ludus.errors import RunError
from ludus.train.output.checkpoints import CHECKPOINTS_DIR

_FOLDER = "best"
_STATE_FILE = "best.json"
_WEIGHTS_FILE = "weights.safetensors"


@dataclass(frozen=True, slots=True)
class BestModel:
    """The step after which a run's model played its held-out tasks best."""

    step: int
    reward: float
    """The mean reward on held-out tasks."""


def read_best(out: Path) -> BestModel | None:
    """The best model so far; None if there is none, or if its weights are not as written."""
    folder = best_model_folder(out)
    try:
        fields = json.loads((folder / _STATE_FILE).read_bytes())
        intact = Checksum(*fields.pop("weights")) == Checksum.of_file(folder / _WEIGHTS_FILE)
        return BestModel(**fields) if intact else None
    except (OSError, ValueError, TypeError, KeyError, RunError):
        return None


def save_best(out: Path, model: Any, best: BestModel) -> None:
    """Replace the best model by the current weights."""
    from safetensors.torch import save_file

    folder, draft = best_model_folder(out), best_model_folder(out).with_name(f".{_FOLDER}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        save_file(_trained_weights(model), draft / _WEIGHTS_FILE)
    except Exception as error:
        # A full disk is an OSError or a SafetensorError.
        shutil.rmtree(draft, ignore_errors=True)
        reason = " ".join(str(error).split())[:300].removesuffix(".")
        raise RunError(
            f"The best model so far could not be saved: {reason}. Set `keep` to last to train "
            "without it."
        ) from error
    fields = {**asdict(best), "weights": Checksum.of_file(draft / _WEIGHTS_FILE)}
    write_atomically(draft / _STATE_FILE, json.dumps(fields))
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)


def load_best(out: Path, model: Any) -> None:
    """Give the model the weights of the best one."""
    import torch
    from safetensors.torch import load_file

    stored = load_file(best_model_folder(out) / _WEIGHTS_FILE)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.copy_(stored[name])


def _trained_weights(model: Any) -> dict[str, Any]:
    return {
        name: weight.detach().cpu().contiguous()
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


def best_model_folder(out: Path) -> Path:
    return out / CHECKPOINTS_DIR / _FOLDER
