"""Calls written as Python writes them: `[guess(word='a'), add(a=1, b=2)]`.

They are read and never run. Where in a reply they stand is `ludus.policy.responses`' business.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

NAME = re.compile(r"\A\[?\s*([\w.]+)\(")
"""Of the first call, also where the rest cannot be read."""
_OF_JSON = {"true": True, "false": False, "null": None}
"""How JSON calls what Python calls otherwise: models mix the two."""


def calls_in(text: str) -> list[dict[str, Any]]:
    """Each call's name and arguments; raises where the text is anything else than calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About backslashes that mean nothing.
        tree = ast.parse(text.strip(), mode="eval").body
    calls = tree.elts if isinstance(tree, ast.List) else [tree]
    if not calls:
        raise ValueError("there is no call in it")
    return [_call(each) for each in calls]


def _call(node: ast.expr) -> dict[str, Any]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("a call is a name with named arguments")
    arguments = {each.arg: _value(each.value) for each in node.keywords}
    name = ast.unparse(node.func)
    if None in arguments or not all(map(str.isidentifier, name.split("."))):
        raise ValueError("tools and arguments have names")
    return {"name": name, "arguments": arguments}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _OF_JSON:
        return _OF_JSON[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key or "**") for key in node.keys]
        return dict(zip(keys, map(_value, node.values), strict=True))
    return ast.literal_eval(node)
