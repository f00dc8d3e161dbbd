"""Tool schemas as methods, read back with the function that TRL uses."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from transformers.utils import get_json_schema

from ludus.data.tool_schema import ToolSpec
from ludus.errors import ConfigError
from ludus.train.trl_compat.tool_signatures import build_method

TEXT = {"type": "string", "description": "Some words."}


def tool(properties: dict[str, Any], *required: str, **more: Any) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": list(required), **more}
    return ToolSpec(name="act", description="Do it.\nWith care.", input_schema=schema)


def read(spec: ToolSpec) -> dict[str, Any]:
    """Return the schema as TRL derives it from a bound method."""
    kind: Any = type("Env", (), {spec.name: build_method(spec, lambda *given: given)})
    schema: dict[str, Any] = get_json_schema(getattr(kind(), spec.name))["function"]
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "integer"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        {"type": "array"},
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "number"}},
        {"type": "string", "enum": ["left", "right"]},
        {"type": "integer", "enum": [1, 2]},
        {"type": ["integer", "string"]},
        {},
    ],
)
def test_argument_schema_round_trip(schema: dict[str, Any]) -> None:
    described = {**schema, "description": "What it is."}
    assert read(tool({"what": described}, "what"))["parameters"]["properties"]["what"] == described


def test_description_order_and_defaults_are_kept() -> None:
    spec = tool({"note": {**TEXT, "default": "-"}, "word": TEXT, "more": TEXT}, "word")
    schema = read(spec)
    assert (schema["name"], schema["description"]) == ("act", "Do it.\nWith care.")
    assert list(schema["parameters"]["properties"]) == ["note", "word", "more"]
    assert schema["parameters"]["required"] == ["word"]
    assert "return" not in schema
    defaults = inspect.signature(build_method(spec, print)).parameters
    assert (defaults["note"].default, defaults["more"].default) == ("-", None)


def test_refs_and_nullable_types_are_resolved() -> None:
    defs = {"Side": {"type": "string", "enum": ["north", "south"]}}
    side = {"$ref": "#/$defs/Side", "description": "Where."}
    either = {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "How far."}
    schema = read(tool({"side": side, "far": either}, "side", **{"$defs": defs}))
    properties = schema["parameters"]["properties"]
    assert properties["side"] == {**defs["Side"], "description": "Where."}
    assert properties["far"] == {"type": "integer", "nullable": True, "description": "How far."}


@pytest.mark.parametrize(
    "choices", [[[1, 2], [3, 4]], [{"x": 1}], ["all", {"x": 1}]], ids=["lists", "objects", "mixed"]
)
def test_enum_of_lists_or_objects_is_any(choices: list[Any]) -> None:
    described = {"description": "Which."}
    schema = read(tool({"what": {"enum": choices, **described}}, "what"))
    assert schema["parameters"]["properties"]["what"] == described


def test_recursive_schema_terminates() -> None:
    tree = {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
    schema = read(tool({"tree": {**tree, "description": "A tree."}}, **{"$defs": {"Tree": tree}}))
    assert schema["parameters"]["properties"]["tree"]["type"] == "array"


def test_missing_and_overlong_descriptions_are_readable() -> None:
    bare = ToolSpec(name="go", input_schema={"type": "object", "properties": {"a": {}, "b": {}}})
    assert set(read(bare)["parameters"]["properties"]) == {"a", "b"}
    assert read(ToolSpec(name="go"))["parameters"] == {"type": "object", "properties": {}}
    wordy = "Go.\n\nArgs:\n    a: old\n\nReturns:\n    Nothing."
    long = {"a": {"type": "string", "description": "First:\nnot last."}}
    schema = read(ToolSpec(name="go", description=wordy, input_schema={"properties": long}))
    assert schema["description"] == "Go."
    assert schema["parameters"]["properties"]["a"]["description"] == "First: not last."


def test_method_passes_all_arguments_on() -> None:
    method = build_method(tool({"word": TEXT}, "word"), lambda *given: given)
    assert method("me", self="you", other=1) == ("me", "act", {"self": "you", "other": 1})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ToolSpec(name="reset"), "'reset'"),
        (ToolSpec(name="_hidden"), "'_hidden'"),
        (ToolSpec(name="go", input_schema={"properties": {"top-k": {}}}), "'top-k'"),
        (ToolSpec(name="go", input_schema={"properties": {"from": {}}}), "'from'"),
    ],
)
def test_invalid_python_names_are_rejected(spec: ToolSpec, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_method(spec, print)
