"""Chance as an agent: legal random tool calls, their arguments made from the tools' schemas."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ludus.agents.agent import Agent, Player, Reply, Situation
from ludus.data.messages import Message, calling
from ludus.data.tools import ToolCall, ToolSpec

_WORDS = ("apple", "river", "seven", "stone", "crane", "light", "north", "table")


class RandomAgent(Agent):
    """Calls some tool in some way; the same episode gets the same calls."""

    provider = "random"

    async def begin(self, situation: Situation) -> Player:
        chance = random.Random(f"{situation.seed}/{situation.member}")
        return _RandomPlayer(situation.tools, chance)


class _RandomPlayer(Player):
    def __init__(self, tools: Sequence[ToolSpec], chance: random.Random) -> None:
        self._tools = tools
        self._chance = chance

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        return Reply(calling(arbitrary_call(self._tools, self._chance), at=len(messages)))


def arbitrary_call(tools: Sequence[ToolSpec], chance: random.Random) -> ToolCall:
    """Some call that every schema allows; the same chance gives the same call."""
    tool = chance.choice(tools)
    return ToolCall(name=tool.name, arguments=_value(tool.input_schema, tool.input_schema, chance))


def _value(schema: Mapping[str, Any], root: Mapping[str, Any], chance: random.Random) -> Any:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return _value(root.get("$defs", {}).get(name, {}), root, chance)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return chance.choice(schema["enum"])
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return _value(chance.choice(schema[choice]), root, chance)
    match schema.get("type"):
        case "object" | None if "properties" in schema:
            required = schema.get("required", ())
            return {
                name: _value(part, root, chance)
                for name, part in schema["properties"].items()
                if name in required or chance.random() < 0.5
            }
        case "integer":
            low = int(schema.get("minimum", 0))
            return chance.randint(low, max(low, int(schema.get("maximum", low + 9))))
        case "number":
            return chance.uniform(schema.get("minimum", 0.0), schema.get("maximum", 1.0))
        case "boolean":
            return chance.random() < 0.5
        case "array":
            return [_value(schema.get("items", {}), root, chance) for _ in range(2)]
        case "null":
            return None
        case "object":
            return {}
        case _:
            return chance.choice(_WORDS)
