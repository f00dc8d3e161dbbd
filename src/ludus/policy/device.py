"""On what a model runs, and in which numbers.

Names are checked before any weights are read. Nothing here loads a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ludus.errors import BadSetting, did_you_mean

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


def choose_device(asked: str | None = None) -> str:
    """The device asked for, if this machine has it; otherwise the fastest that it has."""
    if asked is None:
        return next(kind for kind in DEVICES if _count(kind))
    kind, _, number = asked.partition(":")
    if kind not in DEVICES or (":" in asked and not number.isdecimal()):
        meant = did_you_mean(kind, DEVICES, "Write cuda, cuda:1, mps or cpu.")
        raise BadSetting(f"There is no device called {asked!r}. {meant}")
    count = _count(kind)
    if not count:
        raise BadSetting(
            f"The device {asked} was asked for, and torch sees none here. Use cpu, or a machine "
            f"and a build of torch with {kind}."
        )
    if number and int(number) >= count:
        raise BadSetting(f"There is no {asked} here: torch sees {count}, counted from 0.")
    return asked


def choose_dtype(asked: str | None, device: str) -> str:
    """The kind of number asked for; otherwise the one that the device is fastest in."""
    if asked is None:
        return default_dtype(device, has_bf16=_has_bf16(device))
    if asked not in DTYPES:
        meant = did_you_mean(asked, DTYPES, "Write bfloat16, float16 or float32.")
        raise BadSetting(f"There is no kind of number called {asked!r}. {meant}")
    return DTYPES[asked]


def default_dtype(device: str, *, has_bf16: bool) -> str:
    """A CPU without bfloat16 units is far slower in it, and in float16, than in float32."""
    if has_bf16:
        return "bfloat16"
    return "float32" if device.startswith("cpu") else "float16"


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
