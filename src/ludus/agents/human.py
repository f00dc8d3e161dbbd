"""A person at the terminal, as an agent: types tools and their arguments, line by line."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

from ludus.agents.agent import Agent, EpisodeContext, Player, Reply
from ludus.agents.typed_call import (
    InvalidCall,
    describe_type,
    find_tool,
    parameters,
    parse_typed_arguments,
    parse_value,
    required_parameters,
    usage_line,
)
from ludus.data.messages import Message, build_tool_call_message
from ludus.data.tool_schema import JsonObject, ToolCall, ToolSpec
from ludus.errors import ProviderRefuses

AskLine = Callable[[str], Awaitable[str]]
ShowMessage = Callable[[Message], None]
PrintText = Callable[[str], None]

HELP_COMMAND, QUIT_COMMAND = "help", "quit"


class HumanAgent(Agent):
    """Whoever sits in front of it; one episode at a time."""

    provider = "human"

    def __init__(
        self,
        ask: AskLine | None = None,
        show: ShowMessage | None = None,
        say: PrintText | None = None,
    ) -> None:
        self._ask = ask or TerminalInput().ask
        self._show = show or (lambda message: print(message.text))
        self._say = say or print
        self._episode_lock = asyncio.Lock()

    async def begin(self, context: EpisodeContext) -> Player:
        await self._episode_lock.acquire()
        return _HumanPlayer(context.tools, self._ask, self._show, self._say, self._episode_lock)


class _HumanPlayer(Player):
    def __init__(
        self,
        tools: Sequence[ToolSpec],
        ask: AskLine,
        show: ShowMessage,
        say: PrintText,
        seat: asyncio.Lock,
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._ask = ask
        self._show = show
        self._say = say
        self._episode_lock = seat
        self._messages: Sequence[Message] = ()
        self._num_shown = 0

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        if not self._num_shown:
            self._say(introduction(list(self._tools.values())))
        self._messages = messages
        self._show_new_messages()
        while True:
            try:
                call = await self._ask_call()
            except InvalidCall as reason:
                self._say(str(reason))
            else:
                return Reply(build_tool_call_message(call, position=len(messages)))

    async def close(self) -> None:
        self._show_new_messages()
        self._episode_lock.release()

    def _show_new_messages(self) -> None:
        """Show what has been said since, but not the person's own words."""
        for message in self._messages[self._num_shown :]:
            if message.role in ("user", "tool"):
                self._show(message)
        self._num_shown = len(self._messages)

    async def _ask_call(self) -> ToolCall:
        """One call, or `NoCall` where a line was none."""
        if len(self._tools) == 1:
            (tool,) = self._tools.values()
            given: JsonObject = {}
            asked = list(parameters(tool))
            if not asked:
                await self._ask_line(f"{tool.name} (Enter): ", tool)
        else:
            name, _, rest = (await self._ask_line("> ")).strip().partition(" ")
            if not name:
                raise InvalidCall("Type a tool and its arguments; help shows them, quit leaves.")
            tool = find_tool(name, self._tools)
            given = parse_typed_arguments(tool, rest)
            asked = [name for name in required_parameters(tool) if name not in given]
        for name in asked:
            given |= await self._ask_argument(tool, name)
        return ToolCall(name=tool.name, arguments=given)

    async def _ask_argument(self, tool: ToolSpec, name: str) -> JsonObject:
        """Ask for one argument until it fits; an empty line leaves an optional one out."""
        schema = parameters(tool)[name]
        kind = "" if describe_type(schema) == "text" else f" ({describe_type(schema)})"
        optional = name not in required_parameters(tool)
        prompt = f"{name}{kind}{', or Enter' if optional else ''}: "
        while True:
            line = await self._ask_line(prompt, tool)
            if not line.strip() and optional:
                return {}
            try:
                if not line.strip():
                    empty = ' (or "" for an empty one)' if describe_type(schema) == "text" else ""
                    raise InvalidCall(f"Type {name}{empty}; quit leaves.")
                return {name: parse_value(tool, name, _unquote_command(line))}
            except InvalidCall as reason:
                self._say(str(reason))

    async def _ask_line(self, prompt: str, tool: ToolSpec | None = None) -> str:
        """A line that is neither help nor quit."""
        while True:
            line = await self._ask(prompt)
            command, _, about = line.strip().partition(" ")
            if line.strip() == QUIT_COMMAND:
                raise ProviderRefuses("The player left before the end of the episode.")
            if command != HELP_COMMAND or (tool is not None and about):
                return line
            self._say(self._help_text(about.strip(), tool))

    def _help_text(self, about: str, tool: ToolSpec | None) -> str:
        try:
            chosen = [find_tool(about, self._tools)] if about else list(self._tools.values())
        except InvalidCall as reason:
            return str(reason)
        return help_text([tool] if tool is not None else chosen)


def introduction(tools: Sequence[ToolSpec]) -> str:
    """What is said before the first observation: the tools, and how to type."""
    if len(tools) == 1:
        (tool,) = tools
        names = list(parameters(tool))
        what = f"Type {' and '.join(names)}" if names else "Press Enter"
        return f"{what} to call {tool.name}: {_summary_line(tool)}\nhelp says more, quit leaves.\n"
    width = max(len(usage_line(tool)) for tool in tools)
    lines = [f"  {usage_line(tool):<{width}}  {_summary_line(tool)}" for tool in tools]
    how = "Type a tool and its arguments. help TOOL says more, quit leaves."
    return "\n".join(["Tools:", *lines, how, ""])


def help_text(tools: Sequence[ToolSpec]) -> str:
    """The tools with all that is known about their arguments."""
    lines = []
    for tool in tools:
        lines += ["", usage_line(tool), *(f"  {line}" for line in tool.description.splitlines())]
        for name, schema in parameters(tool).items():
            default = (
                f", {_format_default(schema['default'])} if left out" if "default" in schema else ""
            )
            about = " ".join(str(schema.get("description", "")).split())
            lines.append(f"  {name.upper()}: {describe_type(schema)}{default}. {about}".rstrip())
    ways = (
        "Write arguments in this order, as name=value, or all as one JSON object; quotes keep "
        "words together."
        if len(tools) > 1 or any(len(parameters(tool)) > 1 for tool in tools)
        else f'To send the word {HELP_COMMAND} or {QUIT_COMMAND} itself, put it in quotes: "{HELP_COMMAND}".'
    )
    return "\n".join([*lines[1:], "", ways, f"{QUIT_COMMAND} (or Ctrl-D) leaves the episode.", ""])


def _summary_line(tool: ToolSpec) -> str:
    return next(iter(tool.description.splitlines()), "")


def _format_default(default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return "nothing" if default is None else repr(default)


def _unquote_command(line: str) -> str:
    """The text itself; a command or nothing at all is written in quotes."""
    return line[1:-1] if line.strip() in (f'"{HELP_COMMAND}"', f'"{QUIT_COMMAND}"', '""') else line


class TerminalInput:
    """Reads lines from standard input without holding up the loop, so that servers' pings are
    answered while the person thinks, and without a thread that would outlive an interrupt."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._eof = False

    async def ask(self, prompt: str) -> str:
        """One line of input; it is printed too, where no terminal has shown it."""
        print(_bold(prompt), end="", flush=True)
        while b"\n" not in self._buffer and not self._eof:
            await self._read_chunk()
        line, newline, rest = bytes(self._buffer).partition(b"\n")
        if not line and not newline:
            print(flush=True)
            raise ProviderRefuses("The input ended before the episode did.")
        self._buffer = bytearray(rest)
        text = line.decode(errors="replace").rstrip("\r")
        if not sys.stdin.isatty():
            print(text, flush=True)
        return text

    async def _read_chunk(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        if sys.stdin is None:
            raise ProviderRefuses("There is no input to play from.")
        source = sys.stdin.fileno()
        try:
            loop.add_reader(source, _set_ready, ready)
        except OSError:
            pass  # An ordinary file: it never keeps anybody waiting.
        else:
            try:
                await ready
            finally:
                loop.remove_reader(source)
        chunk = os.read(source, 65536)
        self._buffer += chunk
        self._eof = not chunk


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _bold(prompt: str) -> str:
    return f"\x1b[1m{prompt}\x1b[0m" if sys.stdout.isatty() else prompt
