"""Calls written as Python writes them: `[guess(word='a'), add(a=1, b=2)]`.

They are read and never run. Where in a reply they stand is `ludus.policy.chat.response_templates`' business.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

FIRST_CALL_NAME = re.compile(r"\A\[?\s*([\w.]+)\(")
"""Of the first call, also where the rest cannot be read."""
_JSON_LITERALS = {"true": True, "false": False, "null": None}
"""How JSON calls what Python calls otherwise: models mix the two."""


def parse_calls(text: str) -> list[dict[str, Any]]:
    """Each call's name and arguments; raises where the text is anything else than calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About backslashes that mean nothing.
        tree = ast.parse(text.strip(), mode="eval").body
    calls = tree.elts if isinstance(tree, ast.List) else [tree]
    if not calls:
        raise ValueError("there is no call in it")
    return [_parse_call(each) for each in calls]


def _parse_call(node: ast.expr) -> dict[str, Any]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("a call is a name with named arguments")
    arguments = {each.arg: _parse_value(each.value) for each in node.keywords}
    name = ast.unparse(node.func)
    if None in arguments or not all(map(str.isidentifier, name.split("."))):
        raise ValueError("tools and arguments have names")
    return {"name": name, "arguments": arguments}


def _parse_value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _JSON_LITERALS:
        return _JSON_LITERALS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_parse_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key or "**") for key in node.keys]
        return dict(zip(keys, map(_parse_value, node.values), strict=True))
    return ast.literal_eval(node)
