"""End processes with everything that they have started, and remove what they have left."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

CLEANUP_TIMEOUT_S = 5.0
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of processes below this one whose parents have ended. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants(pid: int) -> None:
    """Kill all processes below a process."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def end_children() -> None:
    """Kill all processes below this one and collect their exit status: none stays as a zombie."""
    deadline = time.monotonic() + CLEANUP_TIMEOUT_S
    with suppress(ChildProcessError):  # None is left.
        while time.monotonic() < deadline:
            kill_descendants(os.getpid())
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.01)


def remove_folder(folder: str | Path) -> None:
    """Remove a folder that dying processes may still write to."""
    deadline = time.monotonic() + CLEANUP_TIMEOUT_S
    while Path(folder).exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)
