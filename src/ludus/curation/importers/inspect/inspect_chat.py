"""Convert the messages of an Inspect AI log to chat messages.

Long texts and images are stored as attachments; reasoning is a content part; the error of a tool is
next to its empty result, and the parse error of a call next to its empty arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ludus.curation.importers.base import FormatError, require_object
from ludus.curation.importers.inspect.inspect_log import resolve_attachments
from ludus.data.tool_schema import JsonObject


def to_chat_messages(values: Any, attachments: JsonObject) -> list[JsonObject]:
    if not isinstance(values, list):
        raise FormatError("messages is not a list")
    return [
        _convert_message(resolve_attachments(require_object(value, f"message {at}"), attachments))
        for at, value in enumerate(values)
    ]


def _convert_message(value: JsonObject) -> JsonObject:
    """Convert a message, without Inspect's ids, sources and notes."""
    content, reasoning = value.get("content"), value.get("reasoning")
    if isinstance(content, list):
        texts = [
            # Redacted reasoning is encrypted; only its summary is readable.
            part.get("summary" if part.get("redacted") else "reasoning")
            for part in content
            if isinstance(part, dict) and part.get("type") == "reasoning"
        ]
        reasoning = "\n\n".join(str(text) for text in texts if text) or reasoning
        content = list(_convert_inspect_parts(content)) or ""
    message = {"role": value.get("role"), "content": content, "reasoning_content": reasoning}
    if value.get("role") == "tool":
        error = value.get("error")
        if isinstance(error, dict):
            # A failed tool has no result; this is what the model was shown.
            message["content"] = f"Error: {error.get('message')}"
        message |= {"tool_call_id": value.get("tool_call_id"), "name": value.get("function")}
    calls = value.get("tool_calls")
    if isinstance(calls, list):
        # Of malformed arguments, Inspect keeps only the parse error.
        calls = [
            {**call, "arguments": str(call["parse_error"])}
            if isinstance(call, dict) and call.get("parse_error")
            else call
            for call in calls
        ]
    return {**message, "tool_calls": calls}


def _convert_inspect_parts(parts: list[Any]) -> Iterator[Any]:
    """Yield the parts of a message of an Inspect log that belong to the content of a chat."""
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "tool_use":
            # A built-in tool of the provider, which is not among the tools of the sample.
            call = f"[{part.get('name')} {part.get('arguments')}]"
            texts = [call, part.get("result"), part.get("error")]
            yield {"type": "text", "text": "\n".join(str(text) for text in texts if text)}
        elif kind not in ("reasoning", "data"):
            yield part
