"""Resolve a model's name: a folder, an adapter, a GGUF file, a Hub id, or `smollm2`.

Neither weights nor tokenizers are read here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ludus.data.hub import is_hub_id
from ludus.errors import ConfigError, closest_match, similar_path_hint
from ludus.policy import smollm2
from ludus.policy.hf_logging import suppress_hf_logging
from ludus.policy.load_errors import describe_load_error, require_transformers

HUB_TIMEOUT_S = 10.0
"""How long to wait for the Hub's answer whether it has a model."""

ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_FILES = ("adapter_*", "*token*", "vocab*", "merges*", "*.jinja")


class ModelKind(StrEnum):
    FOLDER = "folder"
    ADAPTER = "adapter"
    """A folder with a LoRA adapter, whose config names the base model."""
    GGUF = "gguf"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class ModelRef:
    """The location of a model."""

    name: str
    """As the user wrote it."""
    kind: ModelKind
    path: str
    """The folder, the file, or the Hub id."""
    cache_only: bool = False
    """The Hub cannot be reached, so only its local cache can be used."""

    @property
    def hub_unreachable(self) -> bool:
        return self.kind is ModelKind.HUB and self.cache_only

    @property
    def loading_kwargs(self) -> dict[str, Any]:
        """Arguments for `from_pretrained`: a local model is not looked up on the Hub."""
        local_files_only = self.cache_only or self.kind is not ModelKind.HUB
        return {"local_files_only": local_files_only, "trust_remote_code": False}

    @property
    def portable_name(self) -> str:
        """A name that is valid from any working directory, for an adapter's config."""
        if self.kind is ModelKind.HUB or self.name == smollm2.NAME:
            return self.name
        return str(Path(self.path).resolve())


def resolve_model(name: str, *, notify: smollm2.Notify | None = None) -> ModelRef:
    """Find the model of that name; `smollm2` is downloaded first if necessary.

    An existing folder is never looked up on the Hub. (For a folder called smollm2 write ./smollm2.)
    """
    if name == smollm2.NAME:
        return ModelRef(name, ModelKind.FOLDER, str(smollm2.model_folder(notify=notify)))
    if (local := find_local_model(name)) is not None:
        return local
    check_name(name)
    require_transformers("Using a model on the Hub")
    with suppress_hf_logging():
        return _resolve_on_hub(name)


def check_name(name: str) -> None:
    """Raise unless the name is that of a local model or could be a Hub id.

    Uses no network, so that a mistyped path is reported at once.
    """
    if name == smollm2.NAME or find_local_model(name) is not None:
        return
    if not is_hub_id(name, file_suffixes=(".gguf",)):
        hint = similar_path_hint(name) or f"Name a model's folder, org/name, or {smollm2.NAME}."
        raise ConfigError(f"There is no model {name!r}: no such folder or file. {hint}")
    if "/" not in name and closest_match(name.lower(), [smollm2.NAME]):
        raise ConfigError(f"There is no model {name!r}. Did you mean {smollm2.NAME!r}?")


def find_local_model(name: str) -> ModelRef | None:
    """Return the model of that name on this disk, if there is one. Uses no network."""
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        raise ConfigError(f"There is no folder {name}: unknown home directory.") from None
    if name and path.is_dir():
        is_adapter = (path / ADAPTER_CONFIG).is_file()
        return ModelRef(name, ModelKind.ADAPTER if is_adapter else ModelKind.FOLDER, str(path))
    if not path.is_file():
        return None
    if path.suffix.lower() != ".gguf":
        raise ConfigError(
            f"{name} is a file. Name the model's folder, a .gguf file, or a model on the Hub."
        )
    return ModelRef(name, ModelKind.GGUF, str(path))


def expand_home(name: str) -> str:
    """Expand `~` in a model's name: shells do not do so after a colon or an equals sign."""
    try:
        return str(Path(name).expanduser()) if name.startswith("~") else name
    except RuntimeError:
        raise ConfigError(f"{name}: there is no such user here. Write the full path.") from None


def resolve_base_model(adapter: ModelRef, *, notify: smollm2.Notify | None = None) -> ModelRef:
    """Find the base model of an adapter."""
    name = base_model_name(adapter)
    try:
        base = resolve_model(name, notify=notify)
    except ConfigError as error:
        raise ConfigError(f"{adapter.name} is an adapter over {name}. {error}") from None
    if base.kind is ModelKind.ADAPTER and Path(base.path).resolve() == Path(adapter.path).resolve():
        raise ConfigError(f"{adapter.name} is an adapter that names itself as its base model.")
    return base


def base_model_name(adapter: ModelRef) -> str:
    """Read the name of an adapter's base model from its config."""
    try:
        config = json.loads((Path(adapter.path) / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        name = config["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        name = None
    if not name or not isinstance(name, str):
        raise ConfigError(
            f"The {ADAPTER_CONFIG} of {adapter.name} names no base model. Add its "
            "base_model_name_or_path, or name the model itself."
        )
    return name


def _resolve_on_hub(name: str) -> ModelRef:
    """Ask the Hub once: the loaders themselves would retry for most of a minute."""
    from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache

    try:
        info = HfApi(library_name="ludus").model_info(name, timeout=HUB_TIMEOUT_S)
    except Exception as error:
        class_names = {base.__name__ for base in type(error).__mro__}
        if "HFValidationError" in class_names:
            raise ConfigError(
                f"{name!r} is neither a folder nor a name on the Hub. Write a folder, or org/name."
            ) from None
        if "RepositoryNotFoundError" in class_names:
            raise ConfigError(
                f"There is no folder {name} here, and no model of that name on the Hub that may be "
                "read. Check the name; a private one needs `hf auth login`."
            ) from None
        # Any other error means that the Hub could not be reached.
        cached: Any = try_to_load_from_cache(name, ADAPTER_CONFIG)
        if isinstance(cached, str):
            return ModelRef(name, ModelKind.ADAPTER, str(Path(cached).parent), cache_only=True)
        return ModelRef(name, ModelKind.HUB, name, cache_only=True)
    if not any(file.rfilename == ADAPTER_CONFIG for file in info.siblings or ()):
        return ModelRef(name, ModelKind.HUB, name)
    try:
        folder = snapshot_download(name, allow_patterns=list(_ADAPTER_FILES), library_name="ludus")
    except Exception as error:
        raise ConfigError(describe_load_error(name, "adapter", error)) from None
    return ModelRef(name, ModelKind.ADAPTER, str(folder))
