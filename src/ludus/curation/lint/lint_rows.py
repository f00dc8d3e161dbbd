"""Read JSONL training data as rows, conversations and tool calls.

Rows may come from other tools. They are taken exactly as written, because the row itself is what
gets trained on; this module only rejects what no trainer could read. Tool calls are read both from
`tool_calls` and from text, in the forms of `ludus.curation.tool_call_text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic_core import from_json

from ludus.data.jsonl import numbered_lines
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

DATASET_FILES = ("train.jsonl", "test.jsonl")
"""The files that `ludus curate` writes."""

_PAIR_COLUMNS = ("prompt", "chosen", "rejected")
_PROMPT_COMPLETION_COLUMNS = ("prompt", "completion")
_TOOL_CALL_TAG = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_XML_FUNCTION = re.compile(r"<function=([^<>\n]+)>(.*)</function>", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_GLM_CALL = re.compile(r"((?=[\d.:/-]*+[^\W\d])[\w.:/-]++)\s*+(<arg_key>.*)?", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_BARE_CALL_KEYS = ({"name", "parameters"}, {"type", "name", "parameters"})


class MalformedRowError(ValueError):
    """A row that has the right columns with the wrong content."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of a file, counted from 1."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation to train on: the whole row, or one side of a preference pair."""

    name: Literal["", "chosen", "rejected"]
    """Empty if the row is not a pair."""
    messages: list[JsonObject]
    prompt_length: int
    """Number of messages from the `prompt` column; 0 if the row has only `messages`."""

    @property
    def completion(self) -> list[JsonObject]:
        """The messages after the prompt."""
        return self.messages[self.prompt_length :]

    @property
    def replies(self) -> list[JsonObject]:
        """The assistant messages after the prompt."""
        return [message for message in self.completion if message["role"] == "assistant"]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One line of training data."""

    conversations: tuple[Conversation, ...]
    """One, or the chosen and the rejected side of a pair."""
    tools: list[JsonObject] | None

    @property
    def is_pair(self) -> bool:
        return len(self.conversations) > 1


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call, read from `tool_calls` or from text."""

    name: str
    arguments: JsonObject | None
    """None if they are not a JSON object."""
    call_id: str | None = None
    untyped: bool = False
    """Whether all values are strings whose type only the tool's schema tells."""


def find_data_files(data: Path) -> list[Path]:
    """List the JSONL files of a data set folder, or the one file that is named."""
    files = [data / name for name in DATASET_FILES if (data / name).is_file()]
    if not files:
        other = ""
        if data.suffix == ".parquet" or any(data.glob("*.parquet")):
            other = "Parquet"
        elif any((data / name).is_file() for name in ("dataset_dict.json", "dataset_info.json")):
            other = "a folder of the datasets library"
        if other:
            raise RunError(
                f"{data} is {other}, but lint reads JSONL. `ludus curate --format jsonl` writes it."
            )
    if not data.is_dir():
        return [data]
    if not files:
        raise RunError(
            f"{data} contains neither {' nor '.join(DATASET_FILES)}. Create them with `ludus "
            "curate`, or name a JSONL file."
        )
    return files


def read_json_lines(path: Path) -> Iterator[tuple[SourceLocation, JsonObject]]:
    """Yield every non-empty line as a JSON object."""
    for number, line in numbered_lines(path):
        location = SourceLocation(path, number)
        try:
            value = from_json(line)
        except ValueError as error:
            raise RunError(
                f"{location} is not JSON: {error}. Each line must be one JSON object."
            ) from None
        if not isinstance(value, dict):
            raise RunError(f"{location} is not a JSON object. Each line must be one JSON object.")
        yield location, value


def parse_row(columns: JsonObject, location: SourceLocation) -> TrainingRow:
    """Parse a line. Raises `MalformedRowError` if the content of a column is wrong."""
    tools = columns.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError:
            raise MalformedRowError("`tools` is a string that is not JSON") from None
    if tools is not None and not (isinstance(tools, list) and all(map(_has_name, tools))):
        raise MalformedRowError("`tools` is not a list of named tools")
    if "messages" in columns:
        messages = _check_messages(columns["messages"], "messages")
        return TrainingRow((Conversation("", messages, 0),), tools)
    if all(name in columns for name in _PROMPT_COMPLETION_COLUMNS):
        prompt, completion = (
            _check_messages(columns[name], name) for name in _PROMPT_COMPLETION_COLUMNS
        )
        return TrainingRow((Conversation("", [*prompt, *completion], len(prompt)),), tools)
    if not all(name in columns for name in _PAIR_COLUMNS):
        raise RunError(
            f"{location} has neither `messages` nor `prompt` with `completion` or with `chosen` "
            "and `rejected`, so it cannot be trained on. `ludus curate` writes such rows."
        )
    prompt, chosen, rejected = (_check_messages(columns[name], name) for name in _PAIR_COLUMNS)
    return TrainingRow(
        (
            Conversation("chosen", [*prompt, *chosen], len(prompt)),
            Conversation("rejected", [*prompt, *rejected], len(prompt)),
        ),
        tools,
    )


def message_text(message: JsonObject) -> str:
    """Return the text of a message, whether its content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def parse_calls(message: JsonObject) -> list[ToolCall]:
    """Return the tool calls of a message, in whichever form they are written."""
    listed = message.get("tool_calls") or []
    if listed or message.get("role") != "assistant":
        calls = []
        for call in listed:
            function = unwrap_function(call)
            arguments = _parse_object(function.get("arguments", {}))
            calls.append(ToolCall(function["name"], arguments, call.get("id")))
        return calls
    text = message_text(message)
    if bodies := _TOOL_CALL_TAG.findall(text):
        return [call for body in bodies if (call := _parse_tagged_call(body)) is not None]
    # In Llama's form the text ends with calls in bare JSON, which may follow other text.
    text = text.rpartition("</think>")[2].strip()
    if (call := _parse_bare_call(text)) is not None:
        return [call]
    calls = []
    for line in reversed(text.splitlines()):
        if (call := _parse_bare_call(line.strip())) is None:
            break
        calls.append(call)
    return calls[::-1]


def count_unparsable_calls(message: JsonObject) -> int:
    """Count the `<tool_call>` elements of a message that match no known form."""
    if message.get("tool_calls"):
        return 0
    bodies = _TOOL_CALL_TAG.findall(message_text(message))
    return sum(_parse_tagged_call(body) is None for body in bodies)


def unwrap_function(value: JsonObject) -> JsonObject:
    """Return the `function` of a tool or tool call, or the value itself if it is flat."""
    function: JsonObject = value.get("function", value)
    return function


def parse_json(text: str) -> Any:
    """Parse JSON; None if the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _check_messages(value: Any, name: str) -> list[JsonObject]:
    if not isinstance(value, list):
        raise MalformedRowError(f"`{name}` is not a list of messages")
    for at, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise MalformedRowError(f"`{name}[{at}]` is not a message with a role")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(map(_has_name, calls))):
            raise MalformedRowError(f"`{name}[{at}].tool_calls` is not a list of named calls")
    return value


def _has_name(value: Any) -> bool:
    """Whether a tool or a tool call has a name."""
    function = value.get("function", value) if isinstance(value, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _parse_tagged_call(body: str) -> ToolCall | None:
    """Parse what is inside `<tool_call>`: JSON (Hermes, Qwen 3), XML (Qwen 3.5) or GLM's form."""
    body = body.strip()
    if match := _XML_FUNCTION.fullmatch(body):
        return _parse_untyped_call(match[1], _XML_PARAMETER, match[2])
    if match := _GLM_CALL.fullmatch(body):
        return _parse_untyped_call(match[1], _GLM_ARGUMENT, match[2] or "")
    call = parse_json(body)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return ToolCall(call["name"], _parse_object(call.get("arguments", {})))


def _parse_untyped_call(name: str, entry: re.Pattern[str], entries: str) -> ToolCall | None:
    """Parse the arguments of a call; None if there is anything but arguments."""
    if entry.sub("", entries).strip():
        return None
    return ToolCall(name, dict(entry.findall(entries)), untyped=True)


def _parse_bare_call(text: str) -> ToolCall | None:
    """Parse JSON that has exactly the keys of a call: a model may also answer in JSON."""
    call = parse_json(text) if text.startswith("{") and text.endswith("}") else None
    if not isinstance(call, dict) or set(call) not in _BARE_CALL_KEYS:
        return None
    name, parameters = call["name"], call["parameters"]
    if not isinstance(name, str) or not isinstance(parameters, dict):
        return None
    return ToolCall(name, parameters)


def _parse_object(value: Any) -> JsonObject | None:
    parsed = parse_json(value) if isinstance(value, str) else {} if value is None else value
    return parsed if isinstance(parsed, dict) else None
