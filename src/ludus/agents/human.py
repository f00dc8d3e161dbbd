"""A person at the terminal, as an agent: asked for a tool and its arguments, line by line."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ludus.agents.agent import Agent, Player, Reply, Situation
from ludus.data.messages import Message, calling
from ludus.data.tools import ToolCall, ToolSpec
from ludus.errors import ProviderRefuses

Ask = Callable[[str], Awaitable[str]]
Show = Callable[[Message], None]


class HumanAgent(Agent):
    """Whoever sits in front of it; one episode at a time."""

    provider = "human"

    def __init__(self, ask: Ask | None = None, show: Show | None = None) -> None:
        self._ask = ask or Terminal().ask
        self._show = show or (lambda message: print(message.text))
        self._seat = asyncio.Lock()

    async def begin(self, situation: Situation) -> Player:
        await self._seat.acquire()
        return _HumanPlayer(situation.tools, self._ask, self._show, self._seat)


class _HumanPlayer(Player):
    def __init__(self, tools: Sequence[ToolSpec], ask: Ask, show: Show, seat: asyncio.Lock) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._ask = ask
        self._show = show
        self._seat = seat
        self._messages: Sequence[Message] = ()
        self._seen = 0

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        self._messages = messages
        self._look()
        tool = await self._choose()
        call = ToolCall(name=tool.name, arguments=await self._arguments(tool))
        return Reply(calling(call, at=len(messages)))

    async def close(self) -> None:
        self._look()
        self._seat.release()

    def _look(self) -> None:
        """Show what has been said since, but not the person's own words."""
        for message in self._messages[self._seen :]:
            if message.role in ("user", "tool"):
                self._show(message)
        self._seen = len(self._messages)

    async def _choose(self) -> ToolSpec:
        if len(self._tools) == 1:
            return next(iter(self._tools.values()))
        while True:
            name = (await self._ask(f"tool ({', '.join(self._tools)}): ")).strip()
            if name in self._tools:
                return self._tools[name]

    async def _arguments(self, tool: ToolSpec) -> dict[str, Any]:
        """One line per argument; an empty line leaves an optional one out."""
        required = tool.input_schema.get("required", ())
        given = {}
        for name, schema in tool.input_schema.get("properties", {}).items():
            choices = "/".join(str(choice) for choice in schema.get("enum", ()))
            value = await self._ask(name + (f" ({choices})" if choices else "") + ": ")
            if value or name in required:
                given[name] = value
        return given


class Terminal:
    """Reads lines from standard input without holding up the loop, so that servers' pings are
    answered while the person thinks, and without a thread that would outlive an interrupt."""

    def __init__(self) -> None:
        self._typed = bytearray()
        self._ended = False

    async def ask(self, prompt: str) -> str:
        """One line of input."""
        print(prompt, end="", flush=True)
        while b"\n" not in self._typed and not self._ended:
            await self._more()
        line, newline, rest = bytes(self._typed).partition(b"\n")
        if not line and not newline:
            raise ProviderRefuses("The input ended before the episode did.")
        self._typed = bytearray(rest)
        return line.decode(errors="replace").rstrip("\r")

    async def _more(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        if sys.stdin is None:
            raise ProviderRefuses("There is no input to play from.")
        source = sys.stdin.fileno()
        try:
            loop.add_reader(source, _settle, ready)
        except OSError:
            pass  # An ordinary file: it never keeps anybody waiting.
        else:
            try:
                await ready
            finally:
                loop.remove_reader(source)
        chunk = os.read(source, 65536)
        self._typed += chunk
        self._ended = not chunk


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
