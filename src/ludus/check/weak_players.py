"""Players that do not try to solve the task: a reward function should give them little.

Most of them repeat one text in every call: a constant, or a part of the prompt.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, cycle, repeat

from ludus.agents.agent import Agent, EpisodeContext, Player, Reply, build_tool_call_message
from ludus.agents.scripted import random_call
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject, ToolCall, ToolSpec

Strategy = Callable[[Sequence[ToolSpec], str, random.Random], Iterator[ToolCall]]
"""The calls of an episode, from its tools and its first observation as text."""
Answer = Callable[[str], str]
"""The text of all calls of an episode, from its first observation."""

CONSTANTS = (
    *("0", "1", "-1", "2", "5", "10", "100", "0.5", "1e308", "nan", "inf", "True", "False"),
    *("true", "false", "yes", "no", "Yes", "No", "none", "A", "B", "C", "D", "[]", "{}", "[0]"),
    "1*1*3*8",
)
MAX_ONES = 1000
"""The largest target that is written as a sum of ones."""
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")
_NUMBER_LIST = re.compile(r"\d+(?:, \d+)+")
_LIST_ITEM = re.compile(r"^\s*(?:[-*•]|\d+[.):])\s+(.+)$", re.MULTILINE)
_QUOTED = re.compile(r"""\"([^"\n]+)\"|(?<!\w)'([^'\n]+)'(?!\w)|`([^`\n]+)`""")
_BRACKETED = re.compile(r"\[[^][\n]+\]")
_GRID = re.compile(r"\[\[[^a-z]*?\]\s*\]|(?:^[ \t]*[^a-z\s][^a-z\n]*(?:\n|\Z)){2,}", re.MULTILINE)


class WeakAgent(Agent):
    """Plays one strategy; its calls are reproducible from the episode's seed."""

    provider = "weak"

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    async def begin(self, context: EpisodeContext) -> Player:
        rng = random.Random(str(context.seed))
        return _WeakPlayer(lambda prompt: self._strategy(context.tools, prompt, rng))


class _WeakPlayer(Player):
    def __init__(self, start: Callable[[str], Iterator[ToolCall]]) -> None:
        self._start = start
        self._calls: Iterator[ToolCall] | None = None

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        if self._calls is None:
            self._calls = self._start(next((m.text for m in messages if m.role == "user"), ""))
        return Reply(build_tool_call_message(next(self._calls, None), position=len(messages)))


def say(
    texts: Callable[[str], Iterable[str]],
    tools: Sequence[ToolSpec],
    prompt: str,
    rng: random.Random,
) -> Iterator[ToolCall]:
    """A call per text, to the next tool that accepts it; ends if none does."""
    for number, text in enumerate(texts(prompt)):
        able = [tool for tool in tools if _fit_arguments(tool, text)]
        if not able:
            return
        tool = able[number % len(able)]
        arguments = {**random_call([tool], rng).arguments, **_fit_arguments(tool, text)}
        yield ToolCall(name=tool.name, arguments=arguments)


def _repeat(answer: Answer | str, prompt: str) -> Iterator[str]:
    return repeat(answer if isinstance(answer, str) else answer(prompt))


def _pick(pattern: re.Pattern[str], position: int, prompt: str) -> str:
    found = [match[match.lastindex or 0] for match in pattern.finditer(prompt)]
    return found[position].strip() if found else ""


def _numbers(prompt: str) -> list[str]:
    return _NUMBER.findall(prompt)


def _target_without_numbers(prompt: str) -> str:
    """The largest number of a prompt as a sum of pi/pi, which is at most `MAX_ONES`."""
    target = min(MAX_ONES, max(map(float, _numbers(prompt)), default=0.0))
    numbers = _pick(_NUMBER_LIST, 0, prompt).replace(", ", "+")
    return "+".join(["pi/pi"] * int(target)) + f"+({numbers or 0})*(E-E)"


COPIES: Mapping[str, Answer] = {
    "the copied prompt": lambda prompt: prompt,
    "the last line": lambda prompt: prompt.strip().rpartition("\n")[2],
    "the last paragraph": lambda prompt: prompt.strip().rpartition("\n\n")[2],
    "what follows the last colon": lambda prompt: prompt.rpartition(":")[2].strip(),
    "the first number": partial(_pick, _NUMBER, 0),
    "the last number": partial(_pick, _NUMBER, -1),
    "the smallest number": lambda prompt: min(_numbers(prompt), key=float, default=""),
    "the largest number": lambda prompt: max(_numbers(prompt), key=float, default=""),
    "how many numbers": lambda prompt: str(len(_numbers(prompt))),
    "all numbers": lambda prompt: ", ".join(_numbers(prompt)),
    "all numbers as a list": lambda prompt: f"[{', '.join(_numbers(prompt))}]",
    "the sum of all numbers": lambda prompt: f"{sum(map(float, _numbers(prompt))):g}",
    "all numbers added": lambda prompt: " + ".join(_numbers(prompt)),
    "all numbers but the last added": lambda prompt: " + ".join(_numbers(prompt)[:-1]),
    "all numbers multiplied": lambda prompt: "*".join(_numbers(prompt)),
    "target out of pi/pi, plus numbers times 0": _target_without_numbers,
    "the premises joined": lambda prompt: " ∧ ".join(f"({x})" for x in _LIST_ITEM.findall(prompt)),
    "the first list item": partial(_pick, _LIST_ITEM, 0),
    "the last list item": partial(_pick, _LIST_ITEM, -1),
    "the first quotation": partial(_pick, _QUOTED, 0),
    "the last quotation": partial(_pick, _QUOTED, -1),
    "the first brackets": partial(_pick, _BRACKETED, 0),
    "the last brackets": partial(_pick, _BRACKETED, -1),
    "the last grid": partial(_pick, _GRID, -1),
    "the last grid, all zeros": lambda prompt: re.sub(
        r"[^\s\[\],]+", "0", _pick(_GRID, -1, prompt)
    ),
}


def weak_strategies(tools: Sequence[ToolSpec]) -> dict[str, Strategy]:
    """The strategies that can be played with these tools, by name."""
    strategies: dict[str, Strategy] = {
        "random calls": lambda tools, _, rng: (random_call(tools, rng) for _ in count()),
        "empty arguments": lambda tools, _, rng: (
            ToolCall(name=tool.name, arguments=dict.fromkeys(_text_arguments(tool), ""))
            for tool in cycle(tools)
        ),
        "one repeated call": lambda tools, _, rng: repeat(random_call(tools, rng)),
    }
    for text in CONSTANTS:
        if any(_fit_arguments(tool, text) for tool in tools):
            strategies[f"always {text}"] = partial(say, partial(_repeat, text))
    if any(_text_arguments(tool) for tool in tools):
        for name, answer in COPIES.items():
            strategies[name] = partial(say, partial(_repeat, answer))
        # Often examples of moves.
        strategies["the brackets in turn"] = partial(
            say, lambda prompt: cycle(dict.fromkeys(_BRACKETED.findall(prompt)) or [""])
        )
    return strategies


def _fit_arguments(tool: ToolSpec, text: str) -> JsonObject:
    """The arguments of a tool that a text can be given for."""
    arguments = tool.input_schema.get("properties", {})
    fitted = {name: _fit(schema, text) for name, schema in arguments.items()}
    return {name: value for name, value in fitted.items() if value is not None}


def _fit(schema: JsonObject, text: str) -> str | int | float | None:
    """A text as a value of a schema; None if it is not one."""
    if _accepts_text(schema):
        return text
    if "enum" in schema:
        return text if text in schema["enum"] else None
    with suppress(ValueError):
        match schema.get("type"):
            case "integer":
                return int(text)
            case "number" if math.isfinite(float(text)):
                return float(text)
    return None


def _text_arguments(tool: ToolSpec) -> list[str]:
    arguments = tool.input_schema.get("properties", {})
    return [name for name, schema in arguments.items() if _accepts_text(schema)]


def _accepts_text(schema: JsonObject) -> bool:
    if any(_accepts_text(choice) for choice in schema.get("anyOf", ())):
        return True
    return schema.get("type") == "string" and "enum" not in schema and "const" not in schema
