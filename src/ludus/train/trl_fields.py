"""Names of the fields of TRL's configs, read from TRL's source without importing it.

Importing TRL takes seconds; a misspelt override should be reported before that.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

_SOURCES = (
    ("trl", "trainer/{method}_config.py"),
    ("trl", "trainer/base_config.py"),
    ("transformers", "training_args.py"),
)
"""Where the config class of a method and its bases are defined."""


def field_names(method: str) -> frozenset[str] | None:
    """All fields of the config of `method`; None if its source cannot be read."""
    names: set[str] = set()
    for package, pattern in _SOURCES:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            return None
        file = Path(spec.submodule_search_locations[0]) / pattern.format(method=method)
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            return None
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                names |= {
                    line.target.id
                    for line in node.body
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                }
    return frozenset(names)
