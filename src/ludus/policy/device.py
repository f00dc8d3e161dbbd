"""On what a model runs, and in which numbers.

Names are checked before any weights are read. Nothing here loads a model.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError, did_you_mean

DEVICES = ("cuda", "mps", "cpu")
"""In the order in which they are chosen."""

DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "float32": "float32",
    "fp32": "float32",
}
_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def check_device(asked: str | None) -> None:
    """Raise for a device that does not exist, or that this machine cannot have; without torch."""
    if asked is None:
        return
    kind, _ = _parse_device(asked)
    if (kind == "cuda" and not _may_have_cuda()) or (kind == "mps" and sys.platform != "darwin"):
        raise _absent(asked)


def check_dtype(asked: str | None) -> None:
    if asked is not None and asked not in DTYPES:
        meant = did_you_mean(asked, DTYPES, "Write bfloat16, float16 or float32.")
        raise ConfigError(f"Unknown dtype {asked!r}. {meant}")


def choose_device(asked: str | None = None) -> str:
    """The device asked for, if this machine has it; otherwise the fastest that it has."""
    if asked is None:
        return next(kind for kind in DEVICES if _count(kind))
    kind, number = _parse_device(asked)
    count = _count(kind)
    if not count:
        raise _absent(asked)
    if number and int(number) >= count:
        raise ConfigError(f"There is no {asked} here: torch sees {count}, counted from 0.")
    return asked


def choose_dtype(asked: str | None, device: str) -> str:
    """The kind of number asked for; otherwise the one that the device is fastest in."""
    if asked is None:
        return default_dtype(device, has_bf16=_has_bf16(device))
    check_dtype(asked)
    return DTYPES[asked]


def default_dtype(device: str, *, has_bf16: bool) -> str:
    """A CPU without bfloat16 units is far slower in it, and in float16, than in float32."""
    if has_bf16:
        return "bfloat16"
    return "float32" if device.startswith("cpu") else "float16"


def _parse_device(asked: str) -> tuple[str, str]:
    """The kind of device and its number, which may be empty."""
    kind, colon, number = asked.partition(":")
    if kind not in DEVICES or (colon and not number.isdecimal()):
        meant = did_you_mean(kind, DEVICES, "Write cuda, cuda:1, mps or cpu.")
        raise ConfigError(f"Unknown device {asked!r}. {meant}")
    return kind, number


def _absent(asked: str) -> ConfigError:
    return ConfigError(
        f"The device {asked} was asked for, and torch sees none here. Use cpu, or a machine and a "
        f"build of torch with {asked.partition(':')[0]}."
    )


def _may_have_cuda() -> bool:
    """Whether a driver is there that torch could use: NVIDIA's, or AMD's, which is cuda to torch.

    Loading the driver's library takes a millisecond, importing torch seconds.
    """
    if Path("/dev/kfd").exists():
        return True
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def _count(kind: str) -> int:
    import torch

    if kind == "cuda":
        return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return 1


def _has_bf16(device: str) -> bool:
    import torch

    if device.startswith("cuda"):
        # Emulated on cards before Ampere, and then slower than float16.
        return bool(torch.cuda.get_device_capability(device)[0] >= 8)
    if device.startswith("mps"):
        return bool(torch.backends.mps.is_macos_or_newer(14, 0))
    return bool(_CPU_FLAGS & _cpu_flags())


def _cpu_flags(told_in: Path = Path("/proc/cpuinfo")) -> set[str]:
    """What the system says that the processor can do; nothing where it does not say so."""
    try:
        told = told_in.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    flags: Any = (line.partition(":") for line in told.splitlines())
    return {
        flag
        for key, _, rest in flags
        if key.strip() in ("flags", "Features")
        for flag in rest.split()
    }
