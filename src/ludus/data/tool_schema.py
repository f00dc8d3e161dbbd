"""The schema of a tool, and a call of one."""

from __future__ import annotations

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


class ToolCall(BaseModel):
    """A call of a tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    arguments: JsonObject = Field(default_factory=dict)
