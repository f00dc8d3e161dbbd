"""Worker processes, each with a browser: the side of the parent. `browser.py` is their program.

A browser that crashes or hangs ends with its worker, and breaks only the episode that it played. An
idle worker is kept for a while, because starting a browser takes seconds. A worker ends with its
parent, also while the browser hangs, and takes the browser with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from pydantic_core import to_json

from ludus.data.tool_schema import JsonObject
from ludus.environment.worker_processes import (
    WorkerLost,
    WorkerPool,
    WorkerProcess,
    WorkerTimeout,
    pool_per_process,
)
from ludus.errors import LudusError

EXECUTABLE_VARIABLE = "LUDUS_CHROMIUM"
LAUNCH_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 15.0
CLEANUP_TIMEOUT_S = 5.0
MAX_IDLE = 4
IDLE_TIMEOUT_S = 60.0

_BROWSER_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class BrowserMissing(LudusError):
    """No Chromium was found."""


class BrowserFailed(RuntimeError):
    """The browser crashed or hung. The episode is broken; the next reset gets another browser."""


def find_chromium() -> str:
    """The path of the browser: `LUDUS_CHROMIUM`, or the first one on the path."""
    requested = os.environ.get(EXECUTABLE_VARIABLE)
    for name in (requested,) if requested else _BROWSER_NAMES:
        if path := shutil.which(name):
            return path
    if requested:
        raise BrowserMissing(
            f"The browser {requested!r} was not found. Give the path of a Chromium in "
            f"{EXECUTABLE_VARIABLE}."
        )
    raise BrowserMissing(
        "No Chromium is installed. Install it (Debian: apt install chromium), or set "
        f"{EXECUTABLE_VARIABLE} to the path of one."
    )


class BrowserWorker(WorkerProcess):
    """A worker process whose browser runs."""

    def __init__(self) -> None:
        executable_path = find_chromium()
        self.folder = tempfile.mkdtemp(prefix="ludus-browser-")
        super().__init__(
            "ludus.envs.browsergym.browser", stderr=subprocess.DEVNULL, TMPDIR=self.folder
        )
        try:
            self.call("launch", timeout=LAUNCH_TIMEOUT_S, executable_path=executable_path)
        except BaseException:
            self.kill()
            raise

    def call(self, method: str, *, timeout: float, **arguments: object) -> JsonObject:
        """Call a method of the `BrowserSession`; raises `BrowserFailed`."""
        try:
            reply = self.ask(to_json([method, arguments]), timeout_s=timeout)
        except WorkerTimeout:
            raise BrowserFailed(f"The browser did not answer within {timeout:g} s.") from None
        except WorkerLost:
            raise BrowserFailed("The process of the browser ended.") from None
        if "fault" in reply:
            raise BrowserFailed(f"The browser failed: {reply['fault']}")
        value: JsonObject = reply["value"]
        return value

    def kill(self) -> None:
        """End the worker and its browser, even if they hang."""
        # The worker cleans up at the end of its input. It is killed only if it does not.
        with suppress(OSError):
            self._requests.close()
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            kill_descendants(self.pid)
        super().kill()
        remove_folder(self.folder)


browser_pool = pool_per_process(
    partial(WorkerPool, BrowserWorker, max_idle=MAX_IDLE, idle_timeout_s=IDLE_TIMEOUT_S)
)
"""Returns the pool of this process."""


def kill_descendants(pid: int) -> None:
    """Kill all descendants of a worker process, such as its browser."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def remove_folder(folder: str) -> None:
    """Remove a folder that a dying browser may still write to."""
    deadline = time.monotonic() + CLEANUP_TIMEOUT_S
    while Path(folder).exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)
