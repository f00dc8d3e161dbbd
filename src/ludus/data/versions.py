"""Versions of the software that wrote a file, recorded in every folder that a stage writes."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "ludus-rl"


def versions(*packages: str) -> dict[str, str]:
    """Versions of Ludus, Python and the installed `packages`."""
    installed = {"ludus": version(DISTRIBUTION), "python": platform.python_version()}
    for name in packages:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed
