"""Players that do not try to solve the task: what they earn, a reward function gives away."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, repeat
from typing import Any

from ludus.agents.agent import Agent, EpisodeContext, Player, Reply
from ludus.agents.random_agent import random_call
from ludus.agents.tool_calls import build_tool_call_message
from ludus.data.messages import Message
from ludus.data.tool_schema import ToolCall, ToolSpec

Strategy = Callable[[Sequence[ToolSpec], str, random.Random], Iterator[ToolCall]]
"""The calls of an episode, from its tools and its first observation as text."""


class WeakAgent(Agent):
    """Plays one strategy; its calls are reproducible from the episode's seed."""

    provider = "weak"

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    async def begin(self, context: EpisodeContext) -> Player:
        return _WeakPlayer(self._strategy, context)


class _WeakPlayer(Player):
    def __init__(self, strategy: Strategy, context: EpisodeContext) -> None:
        self._strategy = strategy
        self._context = context
        self._calls: Iterator[ToolCall] | None = None

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        if self._calls is None:
            prompt = next((each.text for each in messages if each.role == "user"), "")
            rng = random.Random(str(self._context.seed))
            self._calls = self._strategy(self._context.tools, prompt, rng)
        return Reply(build_tool_call_message(next(self._calls, None), position=len(messages)))


def call_at_random(
    tools: Sequence[ToolSpec], prompt: str, rng: random.Random
) -> Iterator[ToolCall]:
    """Random calls that are valid for the schemas."""
    while True:
        yield random_call(tools, rng)


def call_without_content(
    tools: Sequence[ToolSpec], prompt: str, rng: random.Random
) -> Iterator[ToolCall]:
    """All tools in turn, with empty texts and without any other argument."""
    for tool in cycle(tools):
        yield ToolCall(name=tool.name, arguments=dict.fromkeys(_text_arguments(tool), ""))


def repeat_one_call(
    tools: Sequence[ToolSpec], prompt: str, rng: random.Random
) -> Iterator[ToolCall]:
    """One random call, over and over."""
    return repeat(random_call(tools, rng))


def copy_the_prompt(
    tools: Sequence[ToolSpec], prompt: str, rng: random.Random
) -> Iterator[ToolCall]:
    """The first observation as every text of a call, with all tools that take one in turn."""
    writable = [tool for tool in tools if _text_arguments(tool)]
    for tool in cycle(writable):
        call = random_call([tool], rng)
        copied = dict.fromkeys(_text_arguments(tool), prompt)
        yield ToolCall(name=tool.name, arguments={**call.arguments, **copied})


def weak_strategies(tools: Sequence[ToolSpec]) -> dict[str, Strategy]:
    """The strategies that can be played with these tools, by name."""
    strategies: dict[str, Strategy] = {
        "random calls": call_at_random,
        "empty arguments": call_without_content,
        "one repeated call": repeat_one_call,
    }
    if any(_text_arguments(tool) for tool in tools):
        strategies["the copied prompt"] = copy_the_prompt
    return strategies


def _text_arguments(tool: ToolSpec) -> list[str]:
    """The arguments of a tool that may be any text."""
    arguments = tool.input_schema.get("properties", {})
    return [name for name, schema in arguments.items() if _accepts_text(schema)]


def _accepts_text(schema: Mapping[str, Any]) -> bool:
    if any(_accepts_text(choice) for choice in schema.get("anyOf", ())):
        return True
    return schema.get("type") == "string" and "enum" not in schema and "const" not in schema
