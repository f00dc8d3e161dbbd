"""Models behind Anthropic's Messages API.

The API wants thinking blocks back unchanged, with their signature, which a chat message cannot
hold: a history keeps the content blocks of the model's own replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ludus.agents.agent import FinishReason, Reply
from ludus.agents.api_agent import (
    APIAgent,
    BlockHistory,
    RawToolCall,
    parse_api_calls,
    sanitize_name,
)
from ludus.agents.api_keys import ApiKey
from ludus.agents.provider_errors import response_object, response_token_count
from ludus.data.episode import Usage
from ludus.data.messages import Message, Text
from ludus.data.tool_schema import JsonObject, ToolSpec, parse_arguments
from ludus.errors import BadReply

Blocks = list[JsonObject]

_FINISH_REASONS = {
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.REFUSED,
}
_EMPTY_TEXT_BLOCK: JsonObject = {"type": "text", "text": "(nothing)"}


def build_messages(messages: Sequence[Message], history: BlockHistory) -> list[JsonObject]:
    """Convert messages to Anthropic's format; tool results become user messages."""
    merged: list[JsonObject] = []
    for index, message in enumerate(messages):
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        reply, blocks = history.get(index, (None, []))
        if reply != message:
            blocks = _message_blocks(message)
        if merged and merged[-1]["role"] == role:
            merged[-1]["content"] += blocks
        elif blocks:
            merged.append({"role": role, "content": list(blocks)})
    return merged


def _message_blocks(message: Message) -> Blocks:
    """Text, images, calls and results. Blank text is left out, because the API refuses it."""
    blocks: Blocks = []
    content = message.content
    for part in [Text(text=content)] if isinstance(content, str) else content:
        if isinstance(part, Text):
            if part.text.strip():
                blocks.append({"type": "text", "text": part.text})
            continue
        head, comma, data = part.image_url.url.partition(",")
        source = {"type": "url", "url": part.image_url.url}
        if comma and head.startswith("data:") and head.endswith(";base64"):
            media_type = head.removeprefix("data:").partition(";")[0]
            source = {"type": "base64", "media_type": media_type, "data": data}
        blocks.append({"type": "image", "source": source})
    if message.role == "tool":
        result: JsonObject = {
            "type": "tool_result",
            "tool_use_id": sanitize_name(message.tool_call_id or ""),
            "content": blocks,
        }
        if message.text.startswith("Error:"):
            result["is_error"] = True
        return [result]
    blocks += [
        {
            "type": "tool_use",
            "id": sanitize_name(call.id),
            "name": sanitize_name(call.function.name),
            "input": parse_arguments(call.function.arguments) or {},
        }
        for call in message.tool_calls or ()
    ]
    return blocks if blocks or message.role == "assistant" else [_EMPTY_TEXT_BLOCK]


def parse_reply(body: JsonObject, messages: Sequence[Message]) -> tuple[Reply, Blocks]:
    """Parse Anthropic's reply, and its blocks, which the next turn sends back."""
    content = body.get("content")
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise BadReply("the reply has no content")
    uses = [block for block in content if block.get("type") == "tool_use"]
    calls = parse_api_calls(
        [RawToolCall(use.get("id"), use.get("name"), use.get("input")) for use in uses], messages
    )
    # The blocks get the ids of the calls.
    next_call = iter(calls)
    blocks: Blocks = []
    for block in content:
        if block.get("type") == "tool_use":
            call, arguments = next(next_call), block.get("input")
            block = {
                **block,
                "id": sanitize_name(call.id),
                "name": sanitize_name(call.function.name),
                "input": arguments if isinstance(arguments, dict) else {},
            }
        elif block.get("type") == "text" and not str(block.get("text", "")).strip():
            continue
        blocks.append(block)
    message = Message(
        role="assistant",
        content=_join_blocks(blocks, "text"),
        reasoning_content=_join_blocks(blocks, "thinking") or None,
        tool_calls=calls or None,
    )
    finish_reason = _FINISH_REASONS.get(str(body.get("stop_reason")), FinishReason.STOP)
    return Reply(message, finish_reason, parse_usage(body.get("usage"))), blocks


def _join_blocks(blocks: Blocks, kind: str) -> str:
    return "\n\n".join(str(block.get(kind, "")) for block in blocks if block.get("type") == kind)


def parse_usage(usage: object) -> Usage:
    """Parse token counts. Anthropic counts cache reads and writes apart from `input_tokens`."""
    counts = response_object(usage)
    cache_reads = response_token_count(counts.get("cache_read_input_tokens"))
    cache_writes = response_token_count(counts.get("cache_creation_input_tokens"))
    return Usage(
        prompt_tokens=response_token_count(counts.get("input_tokens")) + cache_writes + cache_reads,
        completion_tokens=response_token_count(counts.get("output_tokens")),
        cached_tokens=cache_reads,
    )


DEFAULT_MAX_TOKENS = 4096
"""The API requires a limit."""


class AnthropicAgent(APIAgent):
    """A model behind the Messages API.

    To enable thinking, set the API's own field:
    `extra={"thinking": {"type": "enabled", "budget_tokens": 2000}}`.
    """

    vendor = "anthropic"
    default_base_url = "https://api.anthropic.com/v1"

    def _headers(self, key: ApiKey | None) -> dict[str, str]:
        headers = {"anthropic-version": "2023-06-01"}
        return {**headers, "x-api-key": key.reveal()} if key else headers

    def build_tool(self, tool: ToolSpec) -> JsonObject:
        return {
            "name": tool.name,
            "description": tool.description,
            "input_schema": {"type": "object", **tool.input_schema},
        }

    async def request_reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject],
        max_tokens: int | None,
        history: BlockHistory,
    ) -> Reply:
        body: JsonObject = {
            "model": self.model,
            "max_tokens": max_tokens or DEFAULT_MAX_TOKENS,
            "messages": build_messages(messages, history),
        }
        system = "\n\n".join(message.text for message in messages if message.role == "system")
        if system:
            body["system"] = system
        if tools:
            body["tools"] = list(tools)

        def parse(response: JsonObject) -> Reply:
            reply, blocks = parse_reply(response, messages)
            history[len(messages)] = reply.message, blocks
            return replace(reply, usage=self._with_cost(reply.usage))

        return await self.client.post("/messages", {**body, **self._request_fields()}, parse)
