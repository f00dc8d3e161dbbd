"""Messages as Anthropic's API takes them, and replies as it gives them.

Pure functions, and a memory of the blocks that an agent's own replies were made of: the API wants
thinking back exactly as it gave it, signature and all, which no chat message can hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ludus.agents.agent import FinishReason, Reply
from ludus.agents.response_errors import token_count
from ludus.agents.tool_calls import RawToolCall, parse_arguments, parse_tool_calls, sanitize_name
from ludus.data.content import Text
from ludus.data.episode import Usage
from ludus.data.messages import Call, Message, Part
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.errors import BadReply

Blocks = list[JsonObject]

_FINISH_REASONS = {
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.REFUSED,
}
_EMPTY_TEXT_BLOCK: JsonObject = {"type": "text", "text": "(nothing)"}


class BlockHistory:
    """The blocks of one episode's own replies, by their place in it."""

    def __init__(self) -> None:
        self._replies: dict[int, tuple[Message, Blocks]] = {}

    def record(self, index: int, message: Message, blocks: Blocks) -> None:
        self._replies[index] = (message, blocks)

    def blocks(self, index: int, message: Message) -> Blocks | None:
        """What this message was made of, if it still is what was replied."""
        kept, blocks = self._replies.get(index, (None, None))
        return blocks if kept is message or kept == message else None


def build_tool(tool: ToolSpec) -> JsonObject:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": {"type": "object", **tool.input_schema},
    }


def build_system(messages: Sequence[Message]) -> str:
    """What stands apart from the conversation in this API."""
    return "\n\n".join(message.text for message in messages if message.role == "system")


def build_messages(messages: Sequence[Message], history: BlockHistory) -> list[JsonObject]:
    """The conversation in turns of user and assistant. Results of tools are the user's."""
    written: list[JsonObject] = []
    for place, message in enumerate(messages):
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = history.blocks(place, message) if role == "assistant" else None
        if blocks is None:
            blocks = _message_blocks(message)
        if written and written[-1]["role"] == role:
            written[-1]["content"] += blocks
        elif blocks:
            written.append({"role": role, "content": list(blocks)})
    return written


def _message_blocks(message: Message) -> Blocks:
    if message.role == "tool":
        return [_tool_result_block(message)]
    parts = _content_blocks(message.content)
    for call in message.tool_calls or ():
        arguments = parse_arguments(call.function.arguments) or {}
        name = sanitize_name(call.function.name)
        use = {"type": "tool_use", "id": sanitize_name(call.id), "name": name}
        parts.append({**use, "input": arguments})
    return parts if parts or message.role == "assistant" else [_EMPTY_TEXT_BLOCK]


def _tool_result_block(message: Message) -> JsonObject:
    result: JsonObject = {
        "type": "tool_result",
        "tool_use_id": sanitize_name(message.tool_call_id or ""),
        "content": _content_blocks(message.content),
    }
    if message.text.startswith("Error:"):
        result["is_error"] = True
    return result


def _content_blocks(content: str | tuple[Part, ...]) -> Blocks:
    """Blocks of text and pictures. Blank text is left out: the API refuses it."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    blocks = [_content_block(part) for part in content]
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


def _content_block(part: Part) -> JsonObject:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    return {"type": "image", "source": _image_source(part.image_url.url)}


def _image_source(url: str) -> JsonObject:
    head, comma, data = url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        return {"type": "url", "url": url}
    kind = head.removeprefix("data:").partition(";")[0]
    return {"type": "base64", "media_type": kind, "data": data}


def parse_reply(body: JsonObject, messages: Sequence[Message]) -> tuple[Reply, Blocks]:
    """What the model said, and the blocks to send back when it goes on."""
    content = body.get("content")
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise BadReply("the reply holds no content")
    blocks, uses = _assign_call_ids(content, messages)
    message = Message(
        role="assistant",
        content=_join_text(blocks, "text"),
        reasoning_content=_join_text(blocks, "thinking") or None,
        tool_calls=uses or None,
    )
    finish = _FINISH_REASONS.get(str(body.get("stop_reason")), FinishReason.STOP)
    return Reply(message, finish, parse_usage(body.get("usage"))), blocks


def _assign_call_ids(
    content: Blocks, messages: Sequence[Message]
) -> tuple[Blocks, tuple[Call, ...]]:
    """The blocks, and the calls in them, which bear the same identities."""
    used = [block for block in content if block.get("type") == "tool_use"]
    asked = [RawToolCall(use.get("id"), use.get("name"), use.get("input")) for use in used]
    calls = parse_tool_calls(asked, messages)
    named = iter(calls)
    blocks = [
        _tool_use_block(block, next(named)) if block.get("type") == "tool_use" else block
        for block in content
        if block.get("type") != "text" or str(block.get("text", "")).strip()
    ]
    return blocks, calls


def _tool_use_block(block: JsonObject, call: Call) -> JsonObject:
    given = block.get("input")
    names = {"id": sanitize_name(call.id), "name": sanitize_name(call.function.name)}
    return {**block, **names, "input": given if isinstance(given, dict) else {}}


def _join_text(blocks: Blocks, kind: str) -> str:
    return "\n\n".join(str(block.get(kind, "")) for block in blocks if block.get("type") == kind)


def parse_usage(usage: Any) -> Usage:
    """What was counted. This API counts what went into and came out of its cache apart."""
    counted: JsonObject = usage if isinstance(usage, dict) else {}
    cached = token_count(counted.get("cache_read_input_tokens"))
    written = token_count(counted.get("cache_creation_input_tokens"))
    return Usage(
        prompt_tokens=token_count(counted.get("input_tokens")) + written + cached,
        completion_tokens=token_count(counted.get("output_tokens")),
        cached_tokens=cached,
    )
