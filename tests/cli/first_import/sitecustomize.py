"""Writes a mark to stderr when torch or transformers is first imported.

Python runs this module at startup if its folder is in PYTHONPATH.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from typing import Any


class _ImportMarker(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in ("torch", "transformers"):
            sys.meta_path.remove(self)
            os.write(2, b"<heavy import>")


sys.meta_path.insert(0, _ImportMarker())
