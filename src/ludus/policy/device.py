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
_BF16_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def check_device(device: str | None) -> None:
    """Raise for a device that does not exist, or that this machine cannot have; without torch."""
    if device is None:
        return
    kind, _ = _parse_device(device)
    if (kind == "cuda" and not _may_have_cuda()) or (kind == "mps" and sys.platform != "darwin"):
        raise _unavailable_error(device)


def check_dtype(dtype: str | None) -> None:
    if dtype is not None and dtype not in DTYPES:
        meant = did_you_mean(dtype, DTYPES, "Write bfloat16, float16 or float32.")
        raise ConfigError(f"Unknown dtype {dtype!r}. {meant}")


def choose_device(device: str | None = None) -> str:
    """The device asked for, if this machine has it; otherwise the fastest that it has."""
    if device is None:
        return next(kind for kind in DEVICES if _device_count(kind))
    kind, number = _parse_device(device)
    count = _device_count(kind)
    if not count:
        raise _unavailable_error(device)
    if number and int(number) >= count:
        raise ConfigError(f"There is no {device} here: torch sees {count}, counted from 0.")
    return device


def choose_dtype(dtype: str | None, device: str) -> str:
    """The kind of number asked for; otherwise the one that the device is fastest in."""
    if dtype is None:
        return default_dtype(device, has_bf16=_has_bf16(device))
    check_dtype(dtype)
    return DTYPES[dtype]


def default_dtype(device: str, *, has_bf16: bool) -> str:
    """A CPU without bfloat16 units is far slower in it, and in float16, than in float32."""
    if has_bf16:
        return "bfloat16"
    return "float32" if device.startswith("cpu") else "float16"


def _parse_device(device: str) -> tuple[str, str]:
    """The kind of device and its number, which may be empty."""
    kind, colon, number = device.partition(":")
    if kind not in DEVICES or (colon and not number.isdecimal()):
        meant = did_you_mean(kind, DEVICES, "Write cuda, cuda:1, mps or cpu.")
        raise ConfigError(f"Unknown device {device!r}. {meant}")
    return kind, number


def _unavailable_error(device: str) -> ConfigError:
    return ConfigError(
        f"The device {device} was asked for, and torch sees none here. Use cpu, or a machine and a "
        f"build of torch with {device.partition(':')[0]}."
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


def _device_count(kind: str) -> int:
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
    return bool(_BF16_CPU_FLAGS & _cpu_flags())


def _cpu_flags(path: Path = Path("/proc/cpuinfo")) -> set[str]:
    """What the system says that the processor can do; nothing where it does not say so."""
    try:
        told = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    flags: Any = (line.partition(":") for line in told.splitlines())
    return {
        flag
        for key, _, rest in flags
        if key.strip() in ("flags", "Features")
        for flag in rest.split()
    }
