"""Parse tool calls in Python syntax: `[guess(word='a'), add(a=1, b=2)]`.

They are parsed with `ast` and never executed.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

FIRST_CALL_NAME = re.compile(r"\A\[?\s*([\w.]+)\(")
"""Finds the name of the first call, also if the rest cannot be parsed."""
_JSON_LITERALS = {"true": True, "false": False, "null": None}
"""Models mix Python's literals with those of JSON."""


def parse_calls(text: str) -> list[dict[str, Any]]:
    """Return each call's name and arguments; raise if the text is anything but calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Invalid escape sequences.
        tree = ast.parse(text.strip(), mode="eval").body
    nodes = tree.elts if isinstance(tree, ast.List) else [tree]
    if not nodes:
        raise ValueError("there is no call in it")
    calls = []
    for node in nodes:
        if not isinstance(node, ast.Call) or node.args:
            raise ValueError("a call needs a name and keyword arguments")
        arguments = {keyword.arg: _parse_value(keyword.value) for keyword in node.keywords}
        name = ast.unparse(node.func)
        if None in arguments or not all(map(str.isidentifier, name.split("."))):
            raise ValueError("a tool and its arguments need names")
        calls.append({"name": name, "arguments": arguments})
    return calls


def _parse_value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _JSON_LITERALS:
        return _JSON_LITERALS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_parse_value(element) for element in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key or "**") for key in node.keys]
        return dict(zip(keys, map(_parse_value, node.values), strict=True))
    return ast.literal_eval(node)
