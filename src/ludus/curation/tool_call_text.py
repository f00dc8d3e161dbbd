"""Tool calls as the text that a model family uses for them: written, and parsed.

Normally a chat template writes them from `tool_calls`. Where a student's template has no tools, or
rows are to be read as plain text, the call is written into the content of the message. Rendered
with the family's own template, both give the same text. The parser accepts the forms of all
families, because rows may come from other tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ludus.data.messages import message_text
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, did_you_mean

_CallWriter = Callable[[str, JsonObject], str]
_TOOL_CALL_TAG = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_XML_FUNCTION = re.compile(r"<function=([^<>\n]+)>(.*)</function>", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_GLM_CALL = re.compile(r"((?=[\d.:/-]*+[^\W\d])[\w.:/-]++)\s*+(<arg_key>.*)?", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_BARE_CALL_KEYS = ({"name", "parameters"}, {"type", "name", "parameters"})


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a model family writes calls, tool results and reasoning."""

    write_call: _CallWriter
    text_separator: str = "\n"
    """Between the text and the first call; calls are separated by a newline."""
    tool_response: str | None = "<tool_response>\n{}\n</tool_response>"
    """A tool result as a user message; None: the template supports the role `tool`."""
    reasoning: str = "<think>\n{}\n</think>\n\n"


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call, read from `tool_calls` or from text."""

    name: str
    arguments: JsonObject | None
    """None if they are not a JSON object."""
    call_id: str | None = None
    untyped: bool = False
    """Whether all values are strings whose type only the tool's schema tells."""


def render_messages(messages: list[JsonObject], call_format: CallFormat) -> list[JsonObject]:
    """Write calls, reasoning and tool results of all messages as text."""
    rendered: list[JsonObject] = []
    response = call_format.tool_response
    for message in messages:
        if message["role"] == "assistant":
            calls = [
                call_format.write_call(call["function"]["name"], call["function"]["arguments"])
                for call in message.get("tool_calls") or ()
            ]
            parts = filter(None, [_render_message_content(message["content"]), "\n".join(calls)])
            text = call_format.text_separator.join(parts)
            if reasoning := message.get("reasoning_content"):
                text = call_format.reasoning.format(reasoning.strip()) + text
            weight = {"weight": message["weight"]} if "weight" in message else {}
            rendered.append({"role": "assistant", "content": text, **weight})
        elif message["role"] != "tool" or response is None:
            rendered.append(message)
        else:
            text = response.format(_render_message_content(message["content"]))
            previous = rendered[-1] if rendered else {"role": ""}
            # Consecutive results share one user message, as in the templates of these families.
            if previous["role"] == "user" and str(previous["content"]).startswith(
                response.partition("{}")[0]
            ):
                rendered[-1] = {"role": "user", "content": f"{previous['content']}\n{text}"}
            else:
                rendered.append({"role": "user", "content": text})
    return rendered


def get_call_format(name: str) -> CallFormat:
    if name not in CALL_FORMATS:
        known = ", ".join(CALL_FORMATS)
        hint = did_you_mean(name, CALL_FORMATS)
        message = f"`tool_call_format` must be one of {known}, got {name!r}. {hint}"
        raise ConfigError(message.rstrip())
    return CALL_FORMATS[name]


def parse_tool_calls(message: JsonObject) -> list[ParsedCall]:
    """Return the tool calls of a message, from `tool_calls` or else from its text."""
    listed = message.get("tool_calls") or []
    if listed or message.get("role") != "assistant":
        calls = []
        for call in listed:
            function = call.get("function", call)
            arguments = _parse_call_arguments(function.get("arguments", {}))
            calls.append(ParsedCall(function["name"], arguments, call.get("id")))
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


def parse_call_json(text: str) -> Any:
    """Parse JSON in the text of a call; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parse_tagged_call(body: str) -> ParsedCall | None:
    """Parse what is inside `<tool_call>`: JSON (Hermes, Qwen 3), XML (Qwen 3.5) or GLM's form."""
    body = body.strip()
    if match := _XML_FUNCTION.fullmatch(body):
        return _parse_call_elements(match[1], _XML_PARAMETER, match[2])
    if match := _GLM_CALL.fullmatch(body):
        return _parse_call_elements(match[1], _GLM_ARGUMENT, match[2] or "")
    call = parse_call_json(body)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return ParsedCall(call["name"], _parse_call_arguments(call.get("arguments", {})))


def _parse_call_elements(name: str, entry: re.Pattern[str], entries: str) -> ParsedCall | None:
    """Parse a call whose arguments are elements of text; None if there is anything else."""
    if entry.sub("", entries).strip():
        return None
    return ParsedCall(name, dict(entry.findall(entries)), untyped=True)


def _parse_bare_call(text: str) -> ParsedCall | None:
    """Parse a call in Llama's form, with exactly its keys: a model may also answer in JSON."""
    call = parse_call_json(text) if text.startswith("{") and text.endswith("}") else None
    if not isinstance(call, dict) or set(call) not in _BARE_CALL_KEYS:
        return None
    name, parameters = call["name"], call["parameters"]
    if not isinstance(name, str) or not isinstance(parameters, dict):
        return None
    return ParsedCall(name, parameters)


def _parse_call_arguments(value: Any) -> JsonObject | None:
    """Parse the arguments of a call, an object or its text; None if they are not an object."""
    parsed = parse_call_json(value) if isinstance(value, str) else {} if value is None else value
    return parsed if isinstance(parsed, dict) else None


def _render_message_content(content: Any) -> str:
    """Return the text of a message that calls are appended to; raise for images."""
    if isinstance(content, str):
        return content
    if any(part["type"] != "text" for part in content):
        raise ConfigError(
            "Images have no text form. Do not set `tool_call_format` for episodes with images."
        )
    return "\n".join(part["text"] for part in content)


def _dump_call_json(value: Any) -> str:
    """Write a call or a value of its arguments as JSON."""
    return json.dumps(value, ensure_ascii=False)


def _qwen_xml_call(name: str, arguments: JsonObject) -> str:
    values = "".join(
        f"<parameter={key}>\n{_dump_call_json(value) if isinstance(value, dict | list) else value}"
        "\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def _glm_call(name: str, arguments: JsonObject) -> str:
    values = "".join(
        f"<arg_key>{key}</arg_key>\n"
        f"<arg_value>{value if isinstance(value, str) else _dump_call_json(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{values}</tool_call>"


_HERMES = CallFormat(
    lambda name, arguments: (
        f"<tool_call>\n{_dump_call_json({'name': name, 'arguments': arguments})}\n</tool_call>"
    )
)
CALL_FORMATS: Mapping[str, CallFormat] = {
    "qwen3": _HERMES,
    "qwen2.5": _HERMES,
    "hermes": _HERMES,
    "smollm": _HERMES,
    "qwen3.5": CallFormat(_qwen_xml_call, text_separator="\n\n"),
    "llama3": CallFormat(
        lambda name, arguments: _dump_call_json({"name": name, "parameters": arguments}),
        tool_response=None,
    ),
    "glm4": CallFormat(_glm_call, tool_response=None, reasoning="<think>{}</think>\n"),
}
