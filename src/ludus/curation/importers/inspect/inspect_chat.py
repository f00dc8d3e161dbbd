"""Messages of an Inspect AI log in the form that chat APIs take.

Long texts and pictures are stored apart from where they were said, under a name; reasoning stands
among the parts of a message; a tool's error stands beside its empty answer, and why a call could
not be read beside its empty arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ludus.curation.importers.base import FormatError, require_object
from ludus.data.tool_schema import JsonObject

_ATTACHMENT_PREFIX = "attachment://"


def to_chat_messages(values: Any, attachments: JsonObject) -> list[JsonObject]:
    if not isinstance(values, list):
        raise FormatError("messages is not a list")
    return [
        _convert_message(resolve_attachments(require_object(value, f"message {at}"), attachments))
        for at, value in enumerate(values)
    ]


def resolve_attachments(value: Any, attachments: JsonObject) -> Any:
    """The value with every stored text back in its place."""
    if isinstance(value, str) and value.startswith(_ATTACHMENT_PREFIX):
        return attachments.get(value.removeprefix(_ATTACHMENT_PREFIX), value)
    if isinstance(value, list):
        return [resolve_attachments(item, attachments) for item in value]
    if isinstance(value, dict):
        return {key: resolve_attachments(item, attachments) for key, item in value.items()}
    return value


def _convert_message(value: JsonObject) -> JsonObject:
    """What is Inspect's own (ids, sources, notes) is left behind."""
    content, thought = value.get("content"), value.get("reasoning")
    if isinstance(content, list):
        thought = "\n\n".join(_reasoning_texts(content)) or thought
        content = list(_content_parts(content)) or ""
    message = {"role": value.get("role"), "content": content, "reasoning_content": thought}
    if value.get("role") == "tool":
        error = value.get("error")
        if isinstance(error, dict):
            # A tool that failed has said nothing; this is what the model was shown.
            message["content"] = f"Error: {error.get('message')}"
        message |= {"tool_call_id": value.get("tool_call_id"), "name": value.get("function")}
    calls = value.get("tool_calls")
    return message | {
        "tool_calls": list(map(_convert_call, calls)) if isinstance(calls, list) else calls
    }


def _convert_call(value: Any) -> Any:
    """What Inspect could not read is kept only in its complaint, which stands for the arguments."""
    wrong = value.get("parse_error") if isinstance(value, dict) else None
    return {**value, "arguments": str(wrong)} if wrong else value


def _reasoning_texts(parts: list[Any]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, dict) and part.get("type") == "reasoning":
            # What is redacted is a cipher; a summary is all that can be read of it.
            words = part.get("summary" if part.get("redacted") else "reasoning")
            if words:
                yield str(words)


def _content_parts(parts: list[Any]) -> Iterator[Any]:
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "tool_use":
            # The provider ran a tool of its own: no call that a tool here could have answered.
            words = [f"[{part.get('name')} {part.get('arguments')}]", part.get("result")]
            words.append(part.get("error"))
            yield {"type": "text", "text": "\n".join(str(word) for word in words if word)}
        elif kind not in ("reasoning", "data"):
            yield part
