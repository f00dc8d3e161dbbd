"""Agents without a model: random calls, scripted replies, or the replies of a function."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ludus.agents.agent import Agent, EpisodeContext, Player, Reply, build_tool_call_message
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject, ToolCall, ToolSpec

ReplyFunction = Callable[[Sequence[Message]], str | Awaitable[str]]
ScriptedReply = Reply | ToolCall | Sequence[ToolCall] | str | Exception


class _CallbackPlayer(Player):
    """Replies with what a function returns for the messages so far; it may be async."""

    def __init__(
        self, reply: Callable[[Sequence[Message]], ScriptedReply | Awaitable[ScriptedReply]]
    ) -> None:
        self._reply = reply

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        reply = self._reply(messages)
        if isinstance(reply, Awaitable):
            reply = await reply
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, Reply):
            return reply
        if isinstance(reply, str):
            return Reply(Message(role="assistant", content=reply))
        calls = [reply] if isinstance(reply, ToolCall) else reply
        return Reply(build_tool_call_message(*calls, position=len(messages)))


class FunctionAgent(Agent):
    """Replies with the text that a function returns for the messages so far; it may be async."""

    provider = "function"

    def __init__(self, function: ReplyFunction) -> None:
        self._function = function

    def describe(self) -> JsonObject:
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        return {"provider": self.provider, "function": f"{self._function.__module__}:{name}"}

    async def begin(self, context: EpisodeContext) -> Player:
        return _CallbackPlayer(self._function)


class ScriptedAgent(Agent):
    """Gives the same replies in every episode, and empty ones after the last.

    A reply is a tool call, several at once, text, a complete `Reply`, or an exception to raise.
    """

    provider = "scripted"

    def __init__(self, *script: ScriptedReply) -> None:
        self._script = script

    async def begin(self, context: EpisodeContext) -> Player:
        replies = iter(self._script)
        return _CallbackPlayer(lambda messages: next(replies, ""))


_WORDS = ("apple", "river", "seven", "stone", "crane", "light", "north", "table")


class RandomAgent(Agent):
    """Calls random tools; the calls are reproducible from the episode's seed."""

    provider = "random"

    @property
    def is_stateless(self) -> bool:
        return type(self) is RandomAgent

    async def begin(self, context: EpisodeContext) -> Player:
        rng = random.Random(f"{context.seed}/{context.member}")
        return _CallbackPlayer(lambda messages: random_call(context.tools, rng))


def random_call(tools: Sequence[ToolSpec], rng: random.Random) -> ToolCall:
    """Draw a random call of a random tool, valid for its schema."""
    tool = rng.choice(tools)
    arguments = _random_value(tool.input_schema, tool.input_schema, rng)
    return ToolCall(name=tool.name, arguments=arguments)


def _random_value(schema: Mapping[str, Any], root: Mapping[str, Any], rng: random.Random) -> Any:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return _random_value(root.get("$defs", {}).get(name, {}), root, rng)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return _random_value(rng.choice(schema[choice]), root, rng)
    match schema.get("type"):
        case "object" | None if "properties" in schema:
            required = schema.get("required", ())
            return {
                name: _random_value(part, root, rng)
                for name, part in schema["properties"].items()
                if name in required or rng.random() < 0.5
            }
        case "integer":
            low, high = _schema_bounds(schema, step=1.0, span=9.0)
            return rng.randint(math.ceil(low), max(math.ceil(low), math.floor(high)))
        case "number":
            return rng.uniform(*_schema_bounds(schema, step=1e-6, span=1.0))
        case "boolean":
            return rng.random() < 0.5
        case "array":
            length = max(schema.get("minItems", 0), min(2, schema.get("maxItems", 2)))
            return [_random_value(schema.get("items", {}), root, rng) for _ in range(length)]
        case "null":
            return None
        case "object":
            return {}
        case _:
            text = rng.choice(_WORDS)
            while len(text) < schema.get("minLength", 0):
                text += f" {rng.choice(_WORDS)}"
            return text[: schema.get("maxLength")]


def _schema_bounds(schema: Mapping[str, Any], *, step: float, span: float) -> tuple[float, float]:
    """The smallest and the largest allowed number, `span` apart if one of them is open."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        low = max(schema["exclusiveMinimum"] + step, low if low is not None else -math.inf)
    if "exclusiveMaximum" in schema:
        high = min(schema["exclusiveMaximum"] - step, high if high is not None else math.inf)
    if low is None:
        low = 0.0 if high is None or high >= 0 else high - span
    return low, low + span if high is None else high
