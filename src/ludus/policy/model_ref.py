"""What a model's name means: a folder, an adapter, a GGUF file, a model on the Hub, or `smollm2`.

Opens no weights and no tokenizer: those are `ludus.policy.load`'s and `ludus.policy.tokenizer`'s.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ludus.data.hub_id import is_hub_id, similar_path_hint
from ludus.errors import ConfigError, closest_match
from ludus.policy import smollm2
from ludus.policy.hf_logging import require, suppress_hf_logging
from ludus.policy.load_errors import describe_load_error

HUB_TIMEOUT_S = 10.0
"""Seconds that the Hub has to say whether it knows a model."""

ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_FILES = ("adapter_*", "*token*", "vocab*", "merges*", "*.jinja")


class ModelKind(StrEnum):
    FOLDER = "folder"
    ADAPTER = "adapter"
    """A folder with a LoRA adapter, which says over which model it goes."""
    GGUF = "gguf"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class ModelRef:
    """Where a model is."""

    name: str
    """As the user wrote it."""
    kind: ModelKind
    path: str
    """The folder, the file, or the id on the Hub."""
    cache_only: bool = False
    """Whether the Hub is out of reach, so that only its cache can be used."""

    @property
    def hub_unreachable(self) -> bool:
        return self.kind is ModelKind.HUB and self.cache_only

    @property
    def portable_name(self) -> str:
        """A name that means the same model in another folder: what an adapter should record."""
        if self.kind is ModelKind.HUB or self.name == smollm2.NAME:
            return self.name
        return str(Path(self.path).resolve())


def resolve_model(name: str, *, notify: smollm2.Notify | None = None) -> ModelRef:
    """Where the model of that name is; `smollm2` is fetched first, where it is not yet here.

    A folder that exists is never looked for on the Hub. (A folder called smollm2 is ./smollm2.)
    """
    if name == smollm2.NAME:
        return ModelRef(name, ModelKind.FOLDER, str(smollm2.model_folder(notify=notify)))
    if (found := find_local_model(name)) is not None:
        return found
    check_name(name)
    require("Using a model on the Hub")
    with suppress_hf_logging():
        return _resolve_on_hub(name)


def check_name(name: str) -> None:
    """Raise where the name is neither a model on this disk nor one that the Hub may have.

    Uses no network, so that a path with a typo is reported at once.
    """
    if name == smollm2.NAME or find_local_model(name) is not None:
        return
    if not is_hub_id(name, file_suffixes=(".gguf",)):
        hint = similar_path_hint(name) or f"Name a model's folder, org/name, or {smollm2.NAME}."
        raise ConfigError(f"There is no model {name!r}: no such folder or file. {hint}")
    if "/" not in name and closest_match(name.lower(), [smollm2.NAME]):
        raise ConfigError(f"There is no model {name!r}. Did you mean {smollm2.NAME!r}?")


def find_local_model(name: str) -> ModelRef | None:
    """The model of that name among the files of this machine; nothing is fetched or asked for."""
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        raise ConfigError(f"There is no folder {name}: nobody has that home.") from None
    if name and path.is_dir():
        return ModelRef(name, _folder_kind(path), str(path))
    return _file_ref(name, path) if path.is_file() else None


def resolve_base_model(adapter: ModelRef, *, notify: smollm2.Notify | None = None) -> ModelRef:
    """The model that an adapter goes over."""
    name = base_model_name(adapter)
    try:
        base = resolve_model(name, notify=notify)
    except ConfigError as error:
        raise ConfigError(f"{adapter.name} is an adapter over {name}. {error}") from None
    if base.kind is ModelKind.ADAPTER and Path(base.path).resolve() == Path(adapter.path).resolve():
        raise ConfigError(f"{adapter.name} is an adapter that says it goes over itself.")
    return base


def base_model_name(adapter: ModelRef) -> str:
    """What an adapter calls the model that it goes over."""
    try:
        config = json.loads((Path(adapter.path) / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        name = config["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        name = None
    if not name or not isinstance(name, str):
        raise ConfigError(
            f"The {ADAPTER_CONFIG} of {adapter.name} does not say over which model it goes. "
            "Name the model itself, or write its base_model_name_or_path there."
        )
    return name


def _folder_kind(folder: Path) -> ModelKind:
    return ModelKind.ADAPTER if (folder / ADAPTER_CONFIG).is_file() else ModelKind.FOLDER


def _file_ref(name: str, path: Path) -> ModelRef:
    if path.suffix.lower() != ".gguf":
        raise ConfigError(
            f"{name} is a file. Name the model's folder, a .gguf file, or a model on the Hub."
        )
    return ModelRef(name, ModelKind.GGUF, str(path))


def _resolve_on_hub(name: str) -> ModelRef:
    """Asked once whether it is there: the loaders themselves would try for most of a minute."""
    from huggingface_hub import HfApi

    try:
        info = HfApi(library_name="ludus").model_info(name, timeout=HUB_TIMEOUT_S)
    except Exception as error:
        _raise_if_unknown(name, error)
        return _resolve_in_cache(name)
    if any(file.rfilename == ADAPTER_CONFIG for file in info.siblings or ()):
        return _download_adapter(name)
    return ModelRef(name, ModelKind.HUB, name)


def _raise_if_unknown(name: str, error: Exception) -> None:
    """Raise where the Hub knows no such model; that it was not reached is no refusal."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "HFValidationError" in kinds:
        raise ConfigError(
            f"{name!r} is neither a folder nor a name on the Hub. Write a folder, or org/name."
        ) from None
    if "RepositoryNotFoundError" in kinds:
        raise ConfigError(
            f"There is no folder {name} here, and no model of that name on the Hub that may be "
            "read. Check the name; a private one needs `hf auth login`."
        ) from None


def _resolve_in_cache(name: str) -> ModelRef:
    from huggingface_hub import try_to_load_from_cache

    found: Any = try_to_load_from_cache(name, ADAPTER_CONFIG)
    if isinstance(found, str):
        return ModelRef(name, ModelKind.ADAPTER, str(Path(found).parent), cache_only=True)
    return ModelRef(name, ModelKind.HUB, name, cache_only=True)


def _download_adapter(name: str) -> ModelRef:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(name, allow_patterns=list(_ADAPTER_FILES), library_name="ludus")
    except Exception as error:
        raise ConfigError(describe_load_error(name, "adapter", error)) from None
    return ModelRef(name, ModelKind.ADAPTER, str(folder))
