"""What one request may cost a worker process: seconds of work and bytes of memory.

Both are kept by the kernel, because Python may be stuck in one huge power, where no handler and no
other thread would run. They count from the start of the request: a worker serves many.
"""

from __future__ import annotations

import os
import signal
from functools import cache

try:
    import resource
except ImportError:  # pragma: no cover - Windows has neither limits nor timers.
    resource = None  # type: ignore[assignment]

MIB = 1 << 20
QUESTION_MEMORY_BYTES = 2048 * MIB
ANSWER_MEMORY_BYTES = 256 * MIB
"""Bytes beyond what the process has when the work begins."""
WALL_TIME_FACTOR = 10
"""How much longer than it may work a request may take in all."""

_PAGE_BYTES = resource.getpagesize() if resource is not None else 4096


def limit_time(seconds: float) -> None:
    """Let the kernel end this process after so many seconds of work; 0 calls it off.

    Only work counts, because a machine that is suspended or busy says nothing about an answer; what
    waits without working is ended too, but much later and by another signal.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, WALL_TIME_FACTOR * seconds)


def limit_memory(extra: int) -> None:
    """Let allocations fail beyond so many bytes more than there are now: with a MemoryError.

    Only Linux tells how much there is, and keeps to the limit.
    """
    used = _memory_in_use()
    if used is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = used + extra
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _memory_in_use() -> int | None:
    """Bytes that the process may write to, as RLIMIT_DATA counts them."""
    file = _usage_file()
    return None if file is None else int(os.pread(file, 256, 0).split()[5]) * _PAGE_BYTES


@cache
def _usage_file() -> int | None:
    try:
        return os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return None


def forbid_core_dumps() -> None:
    """A worker that is ended by its limits leaves no file behind."""
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
