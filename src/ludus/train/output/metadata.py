"""Facts of a training run as JSON: devices, TRL's config; never a secret.

Pure but for asking which devices there are. Writing is `ludus.train.output.run_log`'s.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ludus.data.tool_schema import JsonObject

_READ_BLOCK_BYTES = 1 << 20
_SECRET_FIELDS = frozenset({"hub_token", "push_to_hub_token"})
_LOCAL_FIELDS = frozenset({"output_dir", "logging_dir", "run_name", "resume_from_checkpoint"})
"""Where it ran, which is nobody else's business and differs from run to run."""


def device_names(device: str, processes: int = 1) -> tuple[str, ...]:
    """The name of a device, once for each process that trains on one like it."""
    kind, _, index = device.partition(":")
    name = kind
    if kind == "cuda":
        import torch

        name = torch.cuda.get_device_name(int(index) if index else None)
    elif kind == "cpu":
        name = f"cpu ({platform.machine()})"
    return (str(name),) * processes


def config_json(config: Any) -> JsonObject:
    """Every field of a trainer's config, but for secrets and for places on this machine."""
    fields: Mapping[str, Any] = config.to_dict()
    left_out = _SECRET_FIELDS | _LOCAL_FIELDS
    return {key: to_jsonable(value) for key, value in fields.items() if key not in left_out}


def file_digest(*files: Path) -> str:
    """The SHA-256 of a file, as `sha256sum` gives it, or of several, one after the other."""
    found = sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(_READ_BLOCK_BYTES):
                found.update(block)
    return found.hexdigest()


def to_jsonable(value: Any) -> Any:
    """The value as JSON. What is not finite becomes null, what JSON does not know its type's name.

    A type's name, and no `repr`: that may hold an address in memory, or a secret.
    """
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Enum):
        return to_jsonable(value.value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, BaseModel):
        return to_jsonable(value.model_dump())
    if is_dataclass(value) and not isinstance(value, type):
        return to_jsonable(asdict(value))
    return _container_to_jsonable(value)


def _container_to_jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((to_jsonable(item) for item in value), key=str)
    if isinstance(value, list | tuple):
        return [to_jsonable(item) for item in value]
    if hasattr(value, "item") and not getattr(value, "shape", True):
        return to_jsonable(value.item())
    return type(value).__name__
