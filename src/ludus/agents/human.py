"""A person at the terminal as an agent.

A line is a call: `move north 3`, `move direction=north`, or JSON. The tool's name may be omitted if
there is only one. An invalid line is explained, and no environment sees it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ludus.agents.agent import Agent, EpisodeContext, Player, Reply, build_tool_call_message
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject, ToolCall, ToolSpec, coerce_arguments, json_types
from ludus.errors import ProviderRefuses, did_you_mean

_TYPE_NAMES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "yes or no",
    "array": "a JSON list",
    "object": "a JSON object",
}
_BOOLEAN_WORDS = {"yes": True, "y": True, "no": False, "n": False}


class HumanAgent(Agent):
    """A person at the terminal; plays one episode at a time."""

    provider = "human"

    def __init__(
        self,
        ask: Callable[[str], Awaitable[str]] | None = None,
        show: Callable[[Message], None] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.ask = ask or ask_on_terminal
        self.show = show or (lambda message: print(message.text))
        self.say = say or print
        self.episode_lock = asyncio.Lock()

    async def begin(self, context: EpisodeContext) -> Player:
        await self.episode_lock.acquire()
        self.say(describe_tools(context.tools))
        return _HumanPlayer(self, context.tools)


class _HumanPlayer(Player):
    def __init__(self, agent: HumanAgent, tools: Sequence[ToolSpec]) -> None:
        self._agent = agent
        self._tools = tools
        self._messages: Sequence[Message] = ()
        self._num_shown = 0

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        self._messages = messages
        self._show_new_messages()
        names = " ".join(self._tools[0].parameters()) or "Enter"
        prompt = f"{names}: " if len(self._tools) == 1 else "> "
        while True:
            line = (await self._agent.ask(prompt)).strip()
            if line == "quit":
                raise ProviderRefuses("The player quit before the end of the episode.")
            if line == "help":
                self._agent.say(describe_tools(self._tools))
                continue
            try:
                call = parse_typed_call(line, self._tools)
            except InvalidCall as reason:
                self._agent.say(str(reason))
                continue
            return Reply(build_tool_call_message(call, position=len(messages)))

    async def close(self) -> None:
        self._show_new_messages()
        self._agent.episode_lock.release()

    def _show_new_messages(self) -> None:
        """Show messages that are new since the last turn, except the person's own."""
        for message in self._messages[self._num_shown :]:
            if message.role in ("user", "tool"):
                self._agent.show(message)
        self._num_shown = len(self._messages)


async def ask_on_terminal(prompt: str) -> str:
    """Prompt a person for a line of standard input, and echo it if that is no terminal.

    A daemon thread reads, so that a server's pings are answered meanwhile and an interrupt ends the
    process. It reads the descriptor: `input()` would hold a lock that the interpreter needs to end.
    """
    print(f"\x1b[1m{prompt}\x1b[0m" if sys.stdout.isatty() else prompt, end="", flush=True)
    if sys.stdin is None:
        raise ProviderRefuses("There is no standard input to read from.")
    loop, source = asyncio.get_running_loop(), sys.stdin.fileno()
    line: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        data = bytearray()
        while not data.endswith(b"\n") and (byte := os.read(source, 1)):
            data += byte
        loop.call_soon_threadsafe(deliver, bytes(data))

    def deliver(data: bytes) -> None:
        if not line.cancelled():
            line.set_result(data)

    threading.Thread(target=read, daemon=True).start()
    data = await line
    if not data:
        print(flush=True)
        raise ProviderRefuses("The input ended before the episode.")
    text = data.decode(errors="replace").rstrip("\r\n")
    if not sys.stdin.isatty():
        print(text, flush=True)
    return text


class InvalidCall(Exception):
    """The line is not a valid call; the message says why, and what to type."""


def parse_typed_call(line: str, tools: Sequence[ToolSpec]) -> ToolCall:
    """Parse a typed call; raises `InvalidCall`."""
    tool = tools[0]
    if len(tools) > 1:
        by_name = {tool.name: tool for tool in tools}
        name, _, line = line.partition(" ")
        if name not in by_name:
            hint = did_you_mean(name, [*by_name, "help", "quit"], f"Tools: {', '.join(by_name)}.")
            raise InvalidCall(f"There is no tool {name!r}. {hint}")
        tool = by_name[name]
    arguments = _parse_arguments(tool, line.removeprefix(f"{tool.name} ").strip())
    if any(name not in arguments for name in tool.required_parameters):
        raise InvalidCall(f"Type {usage_line(tool)}; help says more, quit leaves.")
    return ToolCall(name=tool.name, arguments=arguments)


def _parse_arguments(tool: ToolSpec, line: str) -> JsonObject:
    from jsonschema import Draft202012Validator

    parameters = tool.parameters()
    if line.startswith("{"):
        try:
            arguments = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidCall(f"Invalid JSON: {error}.") from None
    elif len(parameters) == 1 and line and not line.startswith(f"{next(iter(parameters))}="):
        is_quoted = len(line) > 1 and line[0] == line[-1] and line[0] in "\"'"
        arguments = {next(iter(parameters)): line[1:-1] if is_quoted else line}
    else:
        try:
            words = shlex.split(line)
        except ValueError:
            words = line.split()  # An apostrophe, not a quote.
        arguments = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or name not in parameters:
                free = (name for name in parameters if name not in arguments)
                name, value = next(free, ""), word
            if not name:
                raise InvalidCall(
                    f"Too many arguments for {usage_line(tool)}. Quotes keep words together."
                )
            arguments[name] = value
    for name in arguments:
        if name not in parameters:
            hint = did_you_mean(name, parameters, f"Usage: {usage_line(tool)}.")
            raise InvalidCall(f"{tool.name} has no argument {name!r}. {hint}")
    values: JsonObject = {}
    for name, typed in arguments.items():
        schema = parameters[name]
        argument: object = coerce_arguments({name: typed}, {"properties": {name: schema}})[name]
        if "boolean" in json_types(schema) and isinstance(argument, str):
            argument = _BOOLEAN_WORDS.get(argument.lower(), argument)
        whole = {**schema, "$defs": tool.input_schema.get("$defs", {})}
        if not Draft202012Validator(whole).is_valid(argument):
            hint = did_you_mean(str(typed), [str(choice) for choice in schema.get("enum", ())])
            reason = f"{name} must be {describe_type(schema)}, not {typed!r}. {hint}"
            raise InvalidCall(reason.strip())
        values[name] = argument
    return values


def describe_type(schema: Mapping[str, object]) -> str:
    """Describe the values to type: `a whole number from 1`, or `north, south or east`."""
    choices = schema.get("enum")
    if isinstance(choices, list):
        *others, last = map(str, choices)
        return f"{', '.join(others)} or {last}" if others else last
    kinds = [_TYPE_NAMES.get(kind, kind) for kind in json_types(schema) if kind != "null"]
    text = " or ".join(dict.fromkeys(kinds)) or "a value"
    bounds = (("minimum", "from"), ("maximum", "to"), ("pattern", "like"))
    return " ".join([text, *(f"{word} {schema[key]}" for key, word in bounds if key in schema)])


def usage_line(tool: ToolSpec) -> str:
    """The usage line of a tool, such as `move DIRECTION [STEPS]`."""
    required = tool.required_parameters
    words = [
        name.upper() if name in required else f"[{name.upper()}]" for name in tool.parameters()
    ]
    return " ".join([tool.name, *words])


def describe_tools(tools: Sequence[ToolSpec]) -> str:
    """Describe the tools and their arguments, and how to type a call."""
    lines = []
    for tool in tools:
        lines += [usage_line(tool), *(f"  {line}" for line in tool.description.splitlines())]
        for name, schema in tool.parameters().items():
            default = f", default {schema['default']!r}" if "default" in schema else ""
            about = " ".join(str(schema.get("description", "")).split())
            lines.append(f"  {name.upper()}: {describe_type(schema)}{default}. {about}".rstrip())
        lines.append("")
    what = "the arguments" if len(tools) == 1 else "a tool and its arguments"
    return "\n".join(
        [
            *lines,
            f"Type {what}: in this order, as name=value, or all as a JSON object.",
            'Quotes keep words together, and make "help" and "quit" values.',
            "help shows this again, quit leaves.",
            "",
        ]
    )
