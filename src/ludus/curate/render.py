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

from ludus.data.tools import JsonObject
from ludus.errors import ConfigError, did_you_mean

_Write = Callable[[str, JsonObject], str]


@dataclass(frozen=True, slots=True)
class Family:
    """How some models write a call, and how they are told what came of it."""

    call: _Write
    after_words: str = "\n"
    """What stands between what was said and the first call; between two calls it is a new line."""
    answer: str | None = "<tool_response>\n{}\n</tool_response>"
    """A tool's answer as a user's message; None: the template takes it as the tool's."""
    think: str = "<think>\n{}\n</think>\n\n"


def rendered(messages: list[JsonObject], family: Family) -> list[JsonObject]:
    """The messages with calls and thoughts as text, and with nothing else in them but text."""
    made: list[JsonObject] = []
    for message in messages:
        if message["role"] == "assistant":
            made.append({"role": "assistant", "content": _spoken(message, family)})
        elif message["role"] != "tool" or family.answer is None:
            made.append(message)
        else:
            words = family.answer.format(_content_text(message["content"]))
            if made and made[-1].get("role") == "user" and _answers(made[-1], family):
                made[-1] = {"role": "user", "content": f"{made[-1]['content']}\n{words}"}
            else:
                made.append({"role": "user", "content": words})
    return made


def family_of(name: str) -> Family:
    if name not in FAMILIES:
        known = ", ".join(FAMILIES)
        hint = did_you_mean(name, FAMILIES)
        raise ConfigError(f"There is no text form {name!r}: one of {known}. {hint}".rstrip())
    return FAMILIES[name]


def _spoken(message: Mapping[str, Any], family: Family) -> str:
    thought, words = message.get("reasoning_content"), _content_text(message["content"])
    calls = [
        family.call(call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    said = family.after_words.join(filter(None, [words, "\n".join(calls)]))
    return f"{family.think.format(thought.strip())}{said}" if thought else said


def _answers(message: Mapping[str, Any], family: Family) -> bool:
    before = (family.answer or "").partition("{}")[0]
    return bool(before) and str(message["content"]).startswith(before)


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if any(part["type"] != "text" for part in content):
        raise ConfigError("A picture has no text form. Leave out --render for these episodes.")
    return "\n".join(part["text"] for part in content)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tagged(name: str, arguments: JsonObject) -> str:
    return f"<tool_call>\n{_json({'name': name, 'arguments': arguments})}\n</tool_call>"


def _parameters(name: str, arguments: JsonObject) -> str:
    return _json({"name": name, "parameters": arguments})


def _elements(name: str, arguments: JsonObject) -> str:
    values = "".join(
        f"<parameter={key}>\n{_json(value) if isinstance(value, dict | list) else value}"
        "\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def _keys(name: str, arguments: JsonObject) -> str:
    values = "".join(
        f"<arg_key>{key}</arg_key>\n"
        f"<arg_value>{value if isinstance(value, str) else _json(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{values}</tool_call>"


_TAGS = Family(_tagged)
FAMILIES: Mapping[str, Family] = {
    "qwen3": _TAGS,
    "qwen2.5": _TAGS,
    "hermes": _TAGS,
    "smollm": _TAGS,
    "qwen3.5": Family(_elements, after_words="\n\n"),
    "llama3": Family(_parameters, answer=None),
    "glm4": Family(_keys, answer=None, think="<think>{}</think>\n"),
}
