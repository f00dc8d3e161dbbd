"""Finds the Chromium that the pages are opened in."""

from __future__ import annotations

import os
import shutil

from ludus.errors import LudusError

EXECUTABLE_VARIABLE = "LUDUS_CHROMIUM"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class BrowserMissing(LudusError):
    """No Chromium was found."""


def find_chromium(executable_path: str | None = None) -> str:
    """The path of the browser: the argument, `LUDUS_CHROMIUM`, or the first one on the path."""
    requested = executable_path or os.environ.get(EXECUTABLE_VARIABLE)
    for name in (requested,) if requested else _NAMES:
        if path := shutil.which(name):
            return path
    if requested:
        raise BrowserMissing(
            f"The browser {requested!r} was not found. Give the path of a Chromium, "
            f"as `executable_path` or in {EXECUTABLE_VARIABLE}."
        )
    raise BrowserMissing(
        "No Chromium is installed. Install it (Debian: apt install chromium), or set "
        f"{EXECUTABLE_VARIABLE} to the path of one."
    )
