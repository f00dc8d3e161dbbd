"""The lists of docs/architecture.md name files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STEPS = re.findall(
    r"^\d+\. `([\w/]+\.py)`: `([\w.]+)`", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE
)


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_a_step_of_the_architecture_exists(file: str, name: str) -> None:
    scope: ast.AST = ast.parse((ROOT / "src" / "ludus" / file).read_text())
    for part in name.split("."):
        definitions = {
            node.name: node
            for node in ast.iter_child_nodes(scope)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        assert part in definitions, f"{file} does not define {name}"
        scope = definitions[part]


def test_files_named_in_the_text_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    files = set(re.findall(r"`((?:[\w]+/)+[\w]+\.py)`", text))
    assert files and all((ROOT / "src" / "ludus" / file).is_file() for file in files)
