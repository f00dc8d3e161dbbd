"""Versions of the software that wrote a file, recorded in every folder that a stage writes."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from ludus import __version__


def versions(*packages: str) -> dict[str, str]:
    """Versions of Ludus, Python and those of `packages` that are installed."""
    installed = {"ludus": __version__, "python": platform.python_version()}
    for name in packages:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed
