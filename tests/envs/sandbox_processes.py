"""Finds the processes of sandboxes, which tests expect to be gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ludus.envs.python import sandboxed_main

_MARK = (sandboxed_main.__doc__ or "").splitlines()[0].encode()
"""Part of the command line of bubblewrap and of the interpreter in it."""


def sandbox_processes(root: int | None = None) -> list[int]:
    """The processes of sandboxes below a process (by default this one), or whose parent is gone."""
    root = os.getpid() if root is None else root
    return [pid for pid in _marked_processes() if {root, 1} & _ancestors(pid, stop_at={root})]


def programs_in_sandboxes() -> list[int]:
    """Those of them that run a program: bubblewrap's children."""
    marked = sandbox_processes()
    return [pid for pid in marked if _parent(pid) in marked]


def wait_for(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def _marked_processes() -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and _MARK in (folder / "cmdline").read_bytes():
                yield int(folder.name)
        except OSError:
            continue


def _ancestors(pid: int, stop_at: set[int]) -> set[int]:
    """The parent, and in turn its parents as far as they are marked, or up to `stop_at`."""
    found = set[int]()
    marked = set(_marked_processes())
    while (pid := _parent(pid)) and pid not in found:
        found.add(pid)
        if pid not in marked or pid in stop_at:
            break
    return found


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])
