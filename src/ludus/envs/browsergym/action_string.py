"""Read actions that are written as a call: `fill('14', 'New York')`. Nothing is executed."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ludus.data.tool_schema import ToolCall
from ludus.errors import ToolError, did_you_mean

MAX_CHARS = 100_000


def parse_action(text: str, tools: Mapping[str, Callable[..., Any]]) -> ToolCall:
    """The tool that is called and its arguments by name; raises `ToolError`."""
    known = ", ".join(f"{name}(…)" for name in tools)
    try:
        if len(text) > MAX_CHARS:
            raise ValueError
        call = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ToolError(f"An action is one call with literal arguments. There are: {known}.")
    name = call.func.id
    if name not in tools:
        hint = did_you_mean(name, tools, f"There are: {known}.")
        raise ToolError(f"No action is named {name!r}. {hint}")
    try:
        positional = [ast.literal_eval(each) for each in call.args]
        named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        bound = inspect.signature(tools[name]).bind(*positional, **named)
    except (TypeError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError(f"The arguments of {name} are wrong: {error}.") from None
    return ToolCall(name=name, arguments=dict(bound.arguments))
