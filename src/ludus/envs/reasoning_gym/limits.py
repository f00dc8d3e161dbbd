"""Limits of a request to a worker process: CPU time and memory.

The kernel enforces both, because Python may be busy with one huge power, during which no signal
handler and no other thread runs. They count from the start of each request.
"""

from __future__ import annotations

import os
import signal
from functools import cache

try:
    import resource
except ImportError:  # pragma: no cover - Windows has neither limits nor timers.
    resource = None  # type: ignore[assignment]  # A module has no optional type.

MIB = 1 << 20
QUESTION_MEMORY_BYTES = 2048 * MIB
ANSWER_MEMORY_BYTES = 256 * MIB
"""In addition to the memory of the process at the start of the request."""
WALL_TIME_FACTOR = 10
"""The wall-clock limit of a request, as a multiple of its CPU limit."""

_PAGE_BYTES = resource.getpagesize() if resource is not None else 4096


def limit_time(seconds: float) -> None:
    """Let the kernel end this process after `seconds` of CPU time; 0 removes the limit.

    CPU time does not depend on the load of the machine. A process that waits without using the CPU
    is ended too, but much later and with another signal.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, WALL_TIME_FACTOR * seconds)


def limit_memory(extra: int) -> None:
    """Let allocations beyond `extra` bytes raise MemoryError. Linux only."""
    usage_file = _usage_file()
    if usage_file is None:
        return
    # The sixth number is the pages of data memory, as RLIMIT_DATA counts them.
    used = int(os.pread(usage_file, 256, 0).split()[5]) * _PAGE_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = used + extra
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@cache
def _usage_file() -> int | None:
    try:
        return os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return None


def forbid_core_dumps() -> None:
    """Keep a worker that is ended by its limits from writing a core file."""
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
