"""Modules of the user, found as `python -m` finds them: installed, or below the current folder."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_user_module(name: str) -> ModuleType:
    """Import a module by its dotted name."""
    _add_current_folder()
    return importlib.import_module(name)


def user_module_path(name: str) -> Path | None:
    """The file of a module, or the folder of the outermost package that it is in.

    None if there is no such module. Nothing is imported.
    """
    _add_current_folder()
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):  # The second: a module in memory that has no spec.
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return None if spec.origin is None else Path(spec.origin)


def _add_current_folder() -> None:
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
