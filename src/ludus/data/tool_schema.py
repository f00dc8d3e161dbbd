"""The schema of a tool, and a call of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

JsonObject = dict[str, Any]


class ToolSpec(BaseModel):
    """Name, description and arguments of a tool."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    description: str = ""
    input_schema: JsonObject = Field(
        default_factory=lambda: {"type": "object", "properties": {}},
        validation_alias=AliasChoices("input_schema", "inputSchema"),
        serialization_alias="inputSchema",
    )

    def to_openai(self) -> JsonObject:
        """The schema of the tool in the format of OpenAI's API, which chat templates take too."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.input_schema,
            },
        }

    def parameters(self) -> dict[str, JsonObject]:
        """The schema of each parameter, with references resolved."""
        definitions = self.input_schema.get("$defs", {})
        schemas: dict[str, JsonObject] = {}
        for name, schema in self.input_schema.get("properties", {}).items():
            schemas[name] = dict(schema) if isinstance(schema, dict) else {}
            if "$ref" in schemas[name]:
                reference = str(schemas[name].pop("$ref")).rpartition("/")[2]
                schemas[name] = {**definitions.get(reference, {}), **schemas[name]}
        return schemas

    @property
    def required_parameters(self) -> Sequence[str]:
        names: Sequence[str] = self.input_schema.get("required", ())
        return names


class ToolCall(BaseModel):
    """A call of a tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    arguments: JsonObject = Field(default_factory=dict)
    text: str = ""
    """What is said with the call: the content of the assistant's message."""


def strip_titles(schema: Any) -> Any:
    """Remove the titles that pydantic adds to a schema: they cost tokens in every prompt."""
    if isinstance(schema, Mapping):
        return {
            key: strip_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    if isinstance(schema, list):
        return [strip_titles(item) for item in schema]
    return schema
