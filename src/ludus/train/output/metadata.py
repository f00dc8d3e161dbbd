"""Facts of a training run as JSON: devices, TRL's config; never a secret.

Pure but for asking which devices there are. Writing is `ludus.train.output.record`'s.
"""

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
