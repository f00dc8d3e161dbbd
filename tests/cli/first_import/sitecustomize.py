"""Writes a mark to stderr at the moment in which torch or transformers is first imported.

Python runs it at its start when this folder is in PYTHONPATH. What a program wrote before the mark
was there before it began to load them.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from typing import Any


class _Marking(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in ("torch", "transformers"):
            sys.meta_path.remove(self)
            os.write(2, b"<heavy import>")


sys.meta_path.insert(0, _Marking())
