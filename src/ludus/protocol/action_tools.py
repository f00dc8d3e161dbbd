"""Derive tools from an action schema, to offer a typed environment to a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ludus.data.tool_schema import JsonObject, ToolSpec, strip_titles


def takes_tool_calls(action_schema: Mapping[str, Any]) -> bool:
    """Whether actions of this schema are `call_tool` actions."""
    return {"tool_name", "arguments"} <= set(action_schema.get("properties", {}))


def tool_from_action(action_schema: Mapping[str, Any]) -> ToolSpec:
    """Derive a tool whose arguments are the fields of the action.

    It has the name of the only field (`answer(answer)`); with several fields it is named after the
    action: `OpenSpielAction` becomes `open_spiel`.
    """
    properties = {
        name: strip_titles(schema)
        for name, schema in action_schema.get("properties", {}).items()
        if name != "metadata"
    }
    parameters: JsonObject = {"type": "object", "properties": properties}
    required = [name for name in action_schema.get("required", ()) if name in properties]
    if required:
        parameters["required"] = required
    if "$defs" in action_schema:
        parameters["$defs"] = strip_titles(action_schema["$defs"])
    parameters["additionalProperties"] = action_schema.get("additionalProperties") is True
    if len(properties) == 1:
        name = next(iter(properties))
    else:
        stem = str(action_schema.get("title", "act")).removesuffix("Action") or "act"
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
    return ToolSpec(
        name=name,
        description=str(action_schema.get("description", "")),
        input_schema=parameters,
    )


def calls_by_name(action_schema: Mapping[str, Any], tools: Sequence[ToolSpec]) -> bool:
    """Whether a call is sent as a `call_tool` action; otherwise its arguments are the action."""
    return takes_tool_calls(action_schema) or len(tools) > 1
