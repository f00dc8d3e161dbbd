"""Write tool calls as the text that a model family uses for them.

Normally a chat template does this from `tool_calls`. Where a student's template has no tools, or
rows are to be read as plain text, the call is written into the content of the message. Rendered
with the family's own template, both give the same text.
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
    """How a model family writes calls, tool results and reasoning."""

    write_call: _CallWriter
    text_separator: str = "\n"
    """Between the text and the first call; calls are separated by a newline."""
    tool_response: str | None = "<tool_response>\n{}\n</tool_response>"
    """A tool result as a user message; None: the template supports the role `tool`."""
    reasoning: str = "<think>\n{}\n</think>\n\n"


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
            parts = filter(None, [_content_text(message["content"]), "\n".join(calls)])
            text = call_format.text_separator.join(parts)
            if reasoning := message.get("reasoning_content"):
                text = call_format.reasoning.format(reasoning.strip()) + text
            rendered.append({"role": "assistant", "content": text})
        elif message["role"] != "tool" or response is None:
            rendered.append(message)
        else:
            text = response.format(_content_text(message["content"]))
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


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if any(part["type"] != "text" for part in content):
        raise ConfigError(
            "Images have no text form. Do not set `tool_call_format` for episodes with images."
        )
    return "\n".join(part["text"] for part in content)


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


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


_HERMES = CallFormat(
    lambda name, arguments: (
        f"<tool_call>\n{_dump_json({'name': name, 'arguments': arguments})}\n</tool_call>"
    )
)
CALL_FORMATS: Mapping[str, CallFormat] = {
    "qwen3": _HERMES,
    "qwen2.5": _HERMES,
    "hermes": _HERMES,
    "smollm": _HERMES,
    "qwen3.5": CallFormat(_qwen_xml_call, text_separator="\n\n"),
    "llama3": CallFormat(
        lambda name, arguments: _dump_json({"name": name, "parameters": arguments}),
        tool_response=None,
    ),
    "glm4": CallFormat(_glm_call, tool_response=None, reasoning="<think>{}</think>\n"),
}
