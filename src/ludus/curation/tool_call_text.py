"""Tool calls as the text that a family of models writes for them.

A chat template makes this text itself from `tool_calls`. Where a student's template knows no tools,
or where rows are to be read as text, the call is written into the content of the message instead.
Rendered by the family's own template, both forms come out the same; tests hold it so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, did_you_mean

_CallWriter = Callable[[str, JsonObject], str]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How some models write a call, and how they are told what came of it."""

    write_call: _CallWriter
    text_separator: str = "\n"
    """What stands between what was said and the first call; between two calls it is a new line."""
    tool_response: str | None = "<tool_response>\n{}\n</tool_response>"
    """A tool's answer as a user's message; None: the template takes it as the tool's."""
    reasoning: str = "<think>\n{}\n</think>\n\n"


def render_messages(messages: list[JsonObject], call_format: CallFormat) -> list[JsonObject]:
    """The messages with calls and thoughts as text, and with nothing else in them but text."""
    made: list[JsonObject] = []
    for message in messages:
        if message["role"] == "assistant":
            made.append({"role": "assistant", "content": _assistant_text(message, call_format)})
        elif message["role"] != "tool" or call_format.tool_response is None:
            made.append(message)
        else:
            words = call_format.tool_response.format(_content_text(message["content"]))
            if made and made[-1].get("role") == "user" and _is_tool_response(made[-1], call_format):
                made[-1] = {"role": "user", "content": f"{made[-1]['content']}\n{words}"}
            else:
                made.append({"role": "user", "content": words})
    return made


def get_call_format(name: str) -> CallFormat:
    if name not in CALL_FORMATS:
        known = ", ".join(CALL_FORMATS)
        hint = did_you_mean(name, CALL_FORMATS)
        raise ConfigError(f"There is no text form {name!r}: one of {known}. {hint}".rstrip())
    return CALL_FORMATS[name]


def _assistant_text(message: Mapping[str, Any], call_format: CallFormat) -> str:
    thought, words = message.get("reasoning_content"), _content_text(message["content"])
    calls = [
        call_format.write_call(call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    said = call_format.text_separator.join(filter(None, [words, "\n".join(calls)]))
    return f"{call_format.reasoning.format(thought.strip())}{said}" if thought else said


def _is_tool_response(message: Mapping[str, Any], call_format: CallFormat) -> bool:
    before = (call_format.tool_response or "").partition("{}")[0]
    return bool(before) and str(message["content"]).startswith(before)


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if any(part["type"] != "text" for part in content):
        raise ConfigError("A picture has no text form. Leave out --render for these episodes.")
    return "\n".join(part["text"] for part in content)


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _hermes_call(name: str, arguments: JsonObject) -> str:
    return f"<tool_call>\n{_dump_json({'name': name, 'arguments': arguments})}\n</tool_call>"


def _llama_call(name: str, arguments: JsonObject) -> str:
    return _dump_json({"name": name, "parameters": arguments})


def _qwen_xml_call(name: str, arguments: JsonObject) -> str:
    values = "".join(
        f"<parameter={key}>\n{_dump_json(value) if isinstance(value, dict | list) else value}"
        "\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def _glm_call(name: str, arguments: JsonObject) -> str:
    values = "".join(
        f"<arg_key>{key}</arg_key>\n"
        f"<arg_value>{value if isinstance(value, str) else _dump_json(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{values}</tool_call>"


_HERMES = CallFormat(_hermes_call)
CALL_FORMATS: Mapping[str, CallFormat] = {
    "qwen3": _HERMES,
    "qwen2.5": _HERMES,
    "hermes": _HERMES,
    "smollm": _HERMES,
    "qwen3.5": CallFormat(_qwen_xml_call, text_separator="\n\n"),
    "llama3": CallFormat(_llama_call, tool_response=None),
    "glm4": CallFormat(_glm_call, tool_response=None, reasoning="<think>{}</think>\n"),
}
