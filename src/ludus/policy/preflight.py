"""What can be known to be wrong with a local model before torch is loaded.

Importing torch takes seconds; a misspelt name should not have to wait for it. Nothing here imports
torch or transformers, reads weights, or asks the Hub.
"""

from __future__ import annotations

from pathlib import Path

from ludus.errors import ConfigError
from ludus.policy import smollm2
from ludus.policy.device import check_device, check_dtype
from ludus.policy.model_ref import ModelKind, base_model_name, check_name, find_local_model

_WEIGHT_PATTERNS = {
    ModelKind.FOLDER: ("*.safetensors", "pytorch_model*.bin"),
    ModelKind.ADAPTER: ("adapter_model.*",),
}


def check_model(name: str, *, device: str | None = None, dtype: str | None = None) -> None:
    """Raise BadSetting where no model of that name can be loaded, or not on that device."""
    check_device(device)
    check_dtype(dtype)
    _check_files(name, frozenset())


def _check_files(name: str, visited: frozenset[str]) -> None:
    """Whether the files of a model are there; of an adapter, those of its base too."""
    check_name(name)
    source = None if name == smollm2.NAME else find_local_model(name)
    if source is None or source.path in visited:
        return
    folder = Path(source.path)
    if source.kind is ModelKind.FOLDER and not (folder / "config.json").is_file():
        raise ConfigError(
            f"{source.name} holds no config.json, so it is no model. Name a folder that "
            "`save_pretrained` wrote."
        )
    patterns = _WEIGHT_PATTERNS.get(source.kind, ())
    if patterns and not any(any(folder.glob(pattern)) for pattern in patterns):
        raise ConfigError(
            f"{source.name} holds no weights: there is no .safetensors file in it. Was its "
            "training stopped before it ended?"
        )
    if source.kind is ModelKind.ADAPTER:
        base = base_model_name(source)
        try:
            _check_files(base, visited | {source.path})
        except ConfigError as error:
            raise ConfigError(f"{source.name} is an adapter over {base}. {error}") from None
