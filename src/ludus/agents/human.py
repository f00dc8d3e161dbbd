"""A person at the terminal as an agent, who types tools and their arguments."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

from ludus.agents.agent import Agent, EpisodeContext, Player, Reply
from ludus.agents.tool_calls import build_tool_call_message
from ludus.agents.typed_call import (
    InvalidCall,
    describe_type,
    find_typed_tool,
    parse_typed_arguments,
    parse_typed_value,
    usage_line,
)
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject, ToolCall, ToolSpec
from ludus.errors import ProviderRefuses

AskLine = Callable[[str], Awaitable[str]]
ShowMessage = Callable[[Message], None]
PrintText = Callable[[str], None]

HELP_COMMAND, QUIT_COMMAND = "help", "quit"
_QUOTED_WORDS = (f'"{HELP_COMMAND}"', f'"{QUIT_COMMAND}"', '""')
"""How a command, or an empty text, is typed as a value."""
_TYPED_CONSTANTS = {"True": "yes", "False": "no", "None": "nothing"}
"""How default values are shown that are not typed as in Python."""


class HumanAgent(Agent):
    """A person at the terminal; plays one episode at a time."""

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
        episode_lock: asyncio.Lock,
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._ask = ask
        self._show = show
        self._say = say
        self._episode_lock = episode_lock
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
        """Show messages that are new since the last turn, except the person's own."""
        for message in self._messages[self._num_shown :]:
            if message.role in ("user", "tool"):
                self._show(message)
        self._num_shown = len(self._messages)

    async def _ask_call(self) -> ToolCall:
        """Ask for one call; raises `InvalidCall` if the line is none."""
        if len(self._tools) == 1:
            (tool,) = self._tools.values()
            arguments: JsonObject = {}
            missing = list(tool.parameters())
            if not missing:
                await self._ask_line(f"{tool.name} (Enter): ", tool)
            elif len(missing) > 1:
                line = await self._ask_line(f"{' '.join(missing)}: ", tool)
                arguments = parse_typed_arguments(tool, line)
                missing = [name for name in tool.required_parameters if name not in arguments]
        else:
            name, _, rest = (await self._ask_line("> ")).strip().partition(" ")
            if not name:
                raise InvalidCall("Type a tool and its arguments; help shows them, quit leaves.")
            tool = find_typed_tool(name, self._tools)
            arguments = parse_typed_arguments(tool, rest)
            missing = [name for name in tool.required_parameters if name not in arguments]
        for name in missing:
            arguments |= await self._ask_argument(tool, name)
        return ToolCall(name=tool.name, arguments=arguments)

    async def _ask_argument(self, tool: ToolSpec, name: str) -> JsonObject:
        """Ask for one argument until it is valid; an empty line skips an optional one."""
        schema = tool.parameters()[name]
        kind = "" if describe_type(schema) == "text" else f" ({describe_type(schema)})"
        optional = name not in tool.required_parameters
        prompt = f"{name}{kind}{', or Enter' if optional else ''}: "
        while True:
            line = await self._ask_line(prompt, tool)
            if len(self._tools) == 1:
                # As the help shows it, with the name of the only tool.
                line = line.removeprefix(f"{tool.name} ")
            if not line.strip() and optional:
                return {}
            try:
                if not line.strip():
                    empty = ' (or "" for an empty one)' if describe_type(schema) == "text" else ""
                    raise InvalidCall(f"Type {name}{empty}; quit leaves.")
                if line.strip() in _QUOTED_WORDS:
                    line = line[1:-1]
                return {name: parse_typed_value(tool, name, line)}
            except InvalidCall as reason:
                self._say(str(reason))

    async def _ask_line(self, prompt: str, tool: ToolSpec | None = None) -> str:
        """Ask for a line; handles the commands help and quit."""
        while True:
            line = await self._ask(prompt)
            command, _, about = line.strip().partition(" ")
            if line.strip() == QUIT_COMMAND:
                raise ProviderRefuses("The player quit before the end of the episode.")
            if command != HELP_COMMAND or (tool is not None and about):
                return line
            if tool is not None:
                self._say(help_text([tool]))
                continue
            try:
                tools = (
                    [find_typed_tool(about.strip(), self._tools)] if about else self._tools.values()
                )
                self._say(help_text(list(tools)))
            except InvalidCall as reason:
                self._say(str(reason))


def introduction(tools: Sequence[ToolSpec]) -> str:
    """The text before the first observation: the tools, and what to type."""
    summaries = [next(iter(tool.description.splitlines()), "") for tool in tools]
    if len(tools) == 1:
        tool = tools[0]
        names = list(tool.parameters())
        what = f"Type {' and '.join(names)}" if names else "Press Enter"
        return f"{what} to call {tool.name}: {summaries[0]}\nhelp says more, quit leaves.\n"
    usages = [usage_line(tool) for tool in tools]
    width = max(map(len, usages))
    rows = zip(usages, summaries, strict=True)
    lines = [f"  {usage:<{width}}  {summary}" for usage, summary in rows]
    how = "Type a tool and its arguments. help TOOL says more, quit leaves."
    return "\n".join(["Tools:", *lines, how, ""])


def help_text(tools: Sequence[ToolSpec]) -> str:
    """The tools with their descriptions and arguments."""
    lines = []
    for tool in tools:
        lines += ["", usage_line(tool), *(f"  {line}" for line in tool.description.splitlines())]
        for name, schema in tool.parameters().items():
            default = ""
            if "default" in schema:
                value = repr(schema["default"])
                default = f", default {_TYPED_CONSTANTS.get(value, value)}"
            about = " ".join(str(schema.get("description", "")).split())
            lines.append(f"  {name.upper()}: {describe_type(schema)}{default}. {about}".rstrip())
    syntax = (
        "Write arguments in this order, as name=value, or all as one JSON object; quotes keep "
        "words together."
        if len(tools) > 1 or any(len(tool.parameters()) > 1 for tool in tools)
        else 'To send the word help or quit itself, put it in quotes: "help".'
    )
    return "\n".join([*lines[1:], "", syntax, "quit (or Ctrl-D) leaves the episode.", ""])


class TerminalInput:
    """Reads lines from standard input without blocking the event loop.

    So a server's pings are answered while the person thinks. It uses no thread, because one that
    blocks in `input()` would keep the process alive after an interrupt.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._eof = False

    async def ask(self, prompt: str) -> str:
        """Prompt for one line; it is echoed if the input is not a terminal."""
        bold = f"\x1b[1m{prompt}\x1b[0m" if sys.stdout.isatty() else prompt
        print(bold, end="", flush=True)
        while b"\n" not in self._buffer and not self._eof:
            await self._read_chunk()
        line, newline, rest = bytes(self._buffer).partition(b"\n")
        if not line and not newline:
            print(flush=True)
            raise ProviderRefuses("The input ended before the episode.")
        self._buffer = bytearray(rest)
        text = line.decode(errors="replace").rstrip("\r")
        if not sys.stdin.isatty():
            print(text, flush=True)
        return text

    async def _read_chunk(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        if sys.stdin is None:
            raise ProviderRefuses("There is no standard input to read from.")
        source = sys.stdin.fileno()
        try:
            # The callback may run again before the reader is removed.
            loop.add_reader(source, lambda: None if ready.done() else ready.set_result(None))
        except OSError:
            pass  # A regular file, which is always ready.
        else:
            try:
                await ready
            finally:
                loop.remove_reader(source)
        chunk = os.read(source, 65536)
        self._buffer += chunk
        self._eof = not chunk
