"""Metadata of a training run as JSON: devices, TRL's config without secrets, digests of files."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from ludus.data.jsonable import to_jsonable
from ludus.data.tool_schema import JsonObject

_READ_BLOCK_BYTES = 1 << 20
_SECRET_FIELDS = frozenset({"hub_token", "push_to_hub_token"})
_LOCAL_FIELDS = frozenset({"output_dir", "logging_dir", "run_name", "resume_from_checkpoint"})
"""Paths and names of this machine, which differ from run to run."""


def device_names(device: str, processes: int = 1) -> tuple[str, ...]:
    """The name of a device, once for each process."""
    kind, _, index = device.partition(":")
    name = kind
    if kind == "cuda":
        import torch

        name = torch.cuda.get_device_name(int(index) if index else None)
    elif kind == "cpu":
        name = f"cpu ({platform.machine()})"
    return (str(name),) * processes


def config_json(config: Any) -> JsonObject:
    """All fields of a trainer's config, except secrets and local paths."""
    fields: Mapping[str, Any] = config.to_dict()
    excluded = _SECRET_FIELDS | _LOCAL_FIELDS
    return {key: to_jsonable(value) for key, value in fields.items() if key not in excluded}


def file_digest(*files: Path) -> str:
    """The SHA-256 of a file, as `sha256sum` prints it, or of several files in a row."""
    digest = sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(_READ_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()
