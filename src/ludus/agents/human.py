"""A person at the terminal, as an agent: types tools and their arguments, line by line."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

from ludus.agents.agent import Agent, Player, Reply, Situation
from ludus.agents.typed_call import (
    NoCall,
    find_tool,
    kind_of,
    parameters,
    parse_arguments,
    parse_value,
    required,
    usage,
)
from ludus.data.messages import Message, build_tool_call_message
from ludus.data.tools import JsonObject, ToolCall, ToolSpec
from ludus.errors import ProviderRefuses

Ask = Callable[[str], Awaitable[str]]
Show = Callable[[Message], None]
Say = Callable[[str], None]

HELP, QUIT = "help", "quit"


class HumanAgent(Agent):
    """Whoever sits in front of it; one episode at a time."""

    provider = "human"

    def __init__(
        self, ask: Ask | None = None, show: Show | None = None, say: Say | None = None
    ) -> None:
        self._ask = ask or Terminal().ask
        self._show = show or (lambda message: print(message.text))
        self._say = say or print
        self._seat = asyncio.Lock()

    async def begin(self, situation: Situation) -> Player:
        await self._seat.acquire()
        return _HumanPlayer(situation.tools, self._ask, self._show, self._say, self._seat)


class _HumanPlayer(Player):
    def __init__(
        self,
        tools: Sequence[ToolSpec],
        ask: Ask,
        show: Show,
        say: Say,
        seat: asyncio.Lock,
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._ask = ask
        self._show = show
        self._say = say
        self._seat = seat
        self._messages: Sequence[Message] = ()
        self._seen = 0

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        if not self._seen:
            self._say(introduction(list(self._tools.values())))
        self._messages = messages
        self._look()
        while True:
            try:
                call = await self._call()
            except NoCall as reason:
                self._say(str(reason))
            else:
                return Reply(build_tool_call_message(call, position=len(messages)))

    async def close(self) -> None:
        self._look()
        self._seat.release()

    def _look(self) -> None:
        """Show what has been said since, but not the person's own words."""
        for message in self._messages[self._seen :]:
            if message.role in ("user", "tool"):
                self._show(message)
        self._seen = len(self._messages)

    async def _call(self) -> ToolCall:
        """One call, or `NoCall` where a line was none."""
        if len(self._tools) == 1:
            (tool,) = self._tools.values()
            given: JsonObject = {}
            asked = list(parameters(tool))
            if not asked:
                await self._line(f"{tool.name} (Enter): ", tool)
        else:
            name, _, rest = (await self._line("> ")).strip().partition(" ")
            if not name:
                raise NoCall("Type a tool and its arguments; help shows them, quit leaves.")
            tool = find_tool(name, self._tools)
            given = parse_arguments(tool, rest)
            asked = [name for name in required(tool) if name not in given]
        for name in asked:
            given |= await self._argument(tool, name)
        return ToolCall(name=tool.name, arguments=given)

    async def _argument(self, tool: ToolSpec, name: str) -> JsonObject:
        """Ask for one argument until it fits; an empty line leaves an optional one out."""
        schema = parameters(tool)[name]
        kind = "" if kind_of(schema) == "text" else f" ({kind_of(schema)})"
        optional = name not in required(tool)
        prompt = f"{name}{kind}{', or Enter' if optional else ''}: "
        while True:
            line = await self._line(prompt, tool)
            if not line.strip() and optional:
                return {}
            try:
                if not line.strip():
                    empty = ' (or "" for an empty one)' if kind_of(schema) == "text" else ""
                    raise NoCall(f"Type {name}{empty}; quit leaves.")
                return {name: parse_value(tool, name, _literal(line))}
            except NoCall as reason:
                self._say(str(reason))

    async def _line(self, prompt: str, tool: ToolSpec | None = None) -> str:
        """A line that is neither help nor quit."""
        while True:
            line = await self._ask(prompt)
            command, _, about = line.strip().partition(" ")
            if line.strip() == QUIT:
                raise ProviderRefuses("The player left before the end of the episode.")
            if command != HELP or (tool is not None and about):
                return line
            self._say(self._help(about.strip(), tool))

    def _help(self, about: str, tool: ToolSpec | None) -> str:
        try:
            chosen = [find_tool(about, self._tools)] if about else list(self._tools.values())
        except NoCall as reason:
            return str(reason)
        return explained([tool] if tool is not None else chosen)


def introduction(tools: Sequence[ToolSpec]) -> str:
    """What is said before the first observation: the tools, and how to type."""
    if len(tools) == 1:
        (tool,) = tools
        names = list(parameters(tool))
        what = f"Type {' and '.join(names)}" if names else "Press Enter"
        return f"{what} to call {tool.name}: {_purpose(tool)}\nhelp says more, quit leaves.\n"
    width = max(len(usage(tool)) for tool in tools)
    lines = [f"  {usage(tool):<{width}}  {_purpose(tool)}" for tool in tools]
    how = "Type a tool and its arguments. help TOOL says more, quit leaves."
    return "\n".join(["Tools:", *lines, how, ""])


def explained(tools: Sequence[ToolSpec]) -> str:
    """The tools with all that is known about their arguments."""
    lines = []
    for tool in tools:
        lines += ["", usage(tool), *(f"  {line}" for line in tool.description.splitlines())]
        for name, schema in parameters(tool).items():
            default = f", {_shown(schema['default'])} if left out" if "default" in schema else ""
            about = " ".join(str(schema.get("description", "")).split())
            lines.append(f"  {name.upper()}: {kind_of(schema)}{default}. {about}".rstrip())
    ways = (
        "Write arguments in this order, as name=value, or all as one JSON object; quotes keep "
        "words together."
        if len(tools) > 1 or any(len(parameters(tool)) > 1 for tool in tools)
        else f'To send the word {HELP} or {QUIT} itself, put it in quotes: "{HELP}".'
    )
    return "\n".join([*lines[1:], "", ways, f"{QUIT} (or Ctrl-D) leaves the episode.", ""])


def _purpose(tool: ToolSpec) -> str:
    return next(iter(tool.description.splitlines()), "")


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return "nothing" if default is None else repr(default)


def _literal(line: str) -> str:
    """The text itself; a command or nothing at all is written in quotes."""
    return line[1:-1] if line.strip() in (f'"{HELP}"', f'"{QUIT}"', '""') else line


class Terminal:
    """Reads lines from standard input without holding up the loop, so that servers' pings are
    answered while the person thinks, and without a thread that would outlive an interrupt."""

    def __init__(self) -> None:
        self._typed = bytearray()
        self._ended = False

    async def ask(self, prompt: str) -> str:
        """One line of input; it is printed too, where no terminal has shown it."""
        print(_bold(prompt), end="", flush=True)
        while b"\n" not in self._typed and not self._ended:
            await self._more()
        line, newline, rest = bytes(self._typed).partition(b"\n")
        if not line and not newline:
            print(flush=True)
            raise ProviderRefuses("The input ended before the episode did.")
        self._typed = bytearray(rest)
        text = line.decode(errors="replace").rstrip("\r")
        if not sys.stdin.isatty():
            print(text, flush=True)
        return text

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


def _bold(prompt: str) -> str:
    return f"\x1b[1m{prompt}\x1b[0m" if sys.stdout.isatty() else prompt
