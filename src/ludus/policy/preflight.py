"""Checks of a local model that need neither torch nor transformers nor the network.

Importing torch takes seconds; a mistyped name should be reported before that.
"""

from __future__ import annotations

from pathlib import Path

from ludus.errors import ConfigError
from ludus.policy import smollm2
from ludus.policy.device import check_device, check_dtype
from ludus.policy.model_ref import (
    ModelKind,
    ModelRef,
    base_model_name,
    check_name,
    find_local_model,
)

_WEIGHT_PATTERNS = {
    ModelKind.FOLDER: ("*.safetensors", "pytorch_model*.bin"),
    ModelKind.ADAPTER: ("adapter_model.*",),
}


def check_model(name: str, *, device: str | None = None, dtype: str | None = None) -> None:
    """Raise `ConfigError` if the model, device or dtype is known to be unusable."""
    check_device(device)
    check_dtype(dtype)
    _check_with_base(name, frozenset())


def check_model_files(ref: ModelRef) -> None:
    """Raise if a folder lacks its config, or a folder or adapter its weights."""
    folder = Path(ref.path)
    if ref.kind is ModelKind.FOLDER and not (folder / "config.json").is_file():
        raise ConfigError(
            f"{ref.name} holds no config.json, so it is not a model. Name a folder written by "
            "`save_pretrained`."
        )
    patterns = _WEIGHT_PATTERNS.get(ref.kind, ())
    if patterns and not any(any(folder.glob(pattern)) for pattern in patterns):
        raise ConfigError(
            f"{ref.name} holds no weights: there is no .safetensors file in it. Was its "
            "training stopped before it ended?"
        )


def _check_with_base(name: str, visited: frozenset[str]) -> None:
    """Check a model and, for an adapter, its base model.

    `visited` are the adapters on the way: their configs may refer to each other in a circle.
    """
    check_name(name)
    ref = None if name == smollm2.NAME else find_local_model(name)
    if ref is None or ref.path in visited:
        return
    check_model_files(ref)
    if ref.kind is ModelKind.ADAPTER:
        base = base_model_name(ref)
        try:
            _check_with_base(base, visited | {ref.path})
        except ConfigError as error:
            raise ConfigError(f"{ref.name} is an adapter over {base}. {error}") from None
