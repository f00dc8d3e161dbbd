"""Random calls are valid."""

from __future__ import annotations

import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ludus.agents.scripted import random_call
from ludus.data.tool_schema import ToolSpec


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": "integer", "minimum": 5},
        {"type": "integer", "maximum": -3},
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3},
        {"type": "number", "minimum": 5.5},
        {"type": "number", "maximum": -2.5},
        {"type": "number", "exclusiveMinimum": 1, "maximum": 2},
        {"type": "string", "minLength": 30},
        {"type": "string", "maxLength": 2},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 4},
        {"type": "array", "items": {"type": "null"}, "maxItems": 1},
        {"enum": ["left", "right"]},
        {"const": 7},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
    ],
)
def test_every_call_is_valid_for_the_schema(schema: dict[str, Any]) -> None:
    arguments = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
    tool = ToolSpec(name="act", input_schema=arguments)
    for seed in range(200):
        call = random_call([tool], random.Random(seed))
        Draft202012Validator(arguments).validate(call.arguments)
