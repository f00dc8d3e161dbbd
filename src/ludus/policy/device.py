"""Devices and dtypes of models: choose them, check them without importing torch, free memory."""

from __future__ import annotations

import gc
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import torch

DEVICES = ("cuda", "mps", "cpu")
"""In order of preference."""

DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "float32": "float32",
    "fp32": "float32",
}
CPU_INFO = Path("/proc/cpuinfo")
_BF16_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def check_device(device: str | None) -> None:
    """Raise for what is no device. Does not import torch."""
    if device is not None:
        _parse_device(device)


def check_dtype(dtype: str | None) -> None:
    if dtype is not None and dtype not in DTYPES:
        hint = did_you_mean(dtype, DTYPES, "Write bfloat16, float16 or float32.")
        raise ConfigError(f"Unknown dtype {dtype!r}. {hint}")


def choose_device(device: str | None = None) -> str:
    """Return the given device if this machine has it; by default the fastest one."""
    if device is None:
        return next(kind for kind in DEVICES if _device_count(kind))
    kind, number = _parse_device(device)
    count = _device_count(kind)
    if not count:
        raise ConfigError(
            f"The device {device} is not available: torch sees none. Use cpu, or a machine and a "
            f"build of torch with {kind}."
        )
    if number and int(number) >= count:
        raise ConfigError(f"There is no {device} here: torch sees {count}, counted from 0.")
    return device


def choose_dtype(dtype: str | None, device: str) -> str:
    """Return torch's name of the given dtype; by default the fastest one on the device."""
    if dtype is not None:
        check_dtype(dtype)
        return DTYPES[dtype]
    import torch

    has_bf16 = False
    if device.startswith("cuda"):
        # Emulated on GPUs before Ampere, and slower there than float16.
        has_bf16 = bool(torch.cuda.get_device_capability(device)[0] >= 8)
    elif device.startswith("mps"):
        has_bf16 = bool(torch.backends.mps.is_macos_or_newer(14, 0))
    else:
        # The words of this file, which only Linux has, include the CPU's features.
        with suppress(OSError):
            words = CPU_INFO.read_text(encoding="utf-8", errors="replace").split()
            has_bf16 = not _BF16_CPU_FLAGS.isdisjoint(words)
    if has_bf16:
        return "bfloat16"
    return "float32" if device.startswith("cpu") else "float16"


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


def gpu_memory_share(device: torch.device) -> float:
    """The bytes of GPU memory that this process may use, whatever others hold."""
    import torch

    total = int(torch.cuda.get_device_properties(device).total_memory)
    return total * float(torch.cuda.get_per_process_memory_fraction(device))


@contextmanager
def limited_gpu_memory(device: torch.device, fraction: float) -> Iterator[None]:
    """Limit this process to a share of the GPU's memory."""
    import torch

    if device.type != "cuda":
        yield
        return
    torch.cuda.set_per_process_memory_fraction(fraction, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def release_gpu_memory() -> None:
    """Collect unused models, which hold reference cycles, and free the device's cached memory."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _parse_device(device: str) -> tuple[str, str]:
    """Split a device into its kind and its number, which may be empty."""
    kind, colon, number = device.partition(":")
    if kind not in DEVICES or (colon and not number.isdecimal()):
        hint = did_you_mean(kind, DEVICES, "Write cuda, cuda:1, mps or cpu.")
        raise ConfigError(f"Unknown device {device!r}. {hint}")
    return kind, number


def _device_count(kind: str) -> int:
    import torch

    if kind == "cuda":
        return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return 1
