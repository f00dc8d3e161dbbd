"""Parts of responses in the format of OpenAI's API."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.policy.chat.reply_stream import ReplyDelta
from ludus.serve.model.api_errors import ApiError
from ludus.serve.model.event_stream import encode_event
from ludus.serve.model.text_stream import REPLACEMENT_CHAR

_DONE_EVENT = b"data: [DONE]\n\n"


def new_id(prefix: str, separator: str = "_") -> str:
    return f"{prefix}{separator}{secrets.token_hex(12)}"


def envelope(kind: str, prefix: str, model: str) -> JsonObject:
    """The fields that a response and all chunks of a stream begin with."""
    return {
        "id": new_id(prefix, "-"),
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def usage(prompt_tokens: int, completion_tokens: int) -> JsonObject:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class CompletionEvents:
    """The events of a stream of chat or text completions, which all begin with the same fields."""

    def __init__(self, head: JsonObject) -> None:
        self._head = head

    def chunk(self, choice: JsonObject) -> bytes:
        return encode_event({**self._head, "choices": [choice]})

    def end(self, usage: JsonObject | None) -> Iterator[bytes]:
        """The last events; the usage comes where it was asked for."""
        if usage is not None:
            yield encode_event({**self._head, "choices": [], "usage": usage})
        yield _DONE_EVENT

    def error(self, error: ApiError) -> bytes:
        return encode_event(error.to_json())


def message_to_json(message: Message) -> JsonObject:
    fields: JsonObject = {
        "role": "assistant",
        "content": message.text or (None if message.tool_calls else ""),
        "refusal": None,
    }
    if message.reasoning_content:
        fields["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        fields["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    return fields


def delta_to_json(delta: ReplyDelta, num_calls: int) -> JsonObject:
    """A piece of a streamed reply, which has had `num_calls` calls before."""
    if delta.call is not None:
        return {"tool_calls": [{"index": num_calls, **delta.call.model_dump()}]}
    if delta.reasoning:
        return {"reasoning_content": delta.reasoning}
    return {"content": delta.content}


def chat_logprobs(
    tokenizer: Any, ids: Sequence[int], logprobs: Sequence[float], *, as_ids: bool
) -> list[JsonObject]:
    """The entries of `logprobs.content` in a chat completion."""
    entries = []
    for token_id, logprob in zip(ids, logprobs, strict=True):
        text = token_text(tokenizer, token_id, as_ids=as_ids)
        # A token may be a part of a character, whose bytes are not known here.
        is_text = not as_ids and REPLACEMENT_CHAR not in text
        encoded = list(text.encode("utf-8", "replace")) if is_text else None
        entries.append({"token": text, "logprob": logprob, "bytes": encoded, "top_logprobs": []})
    return entries


def text_logprobs(
    tokenizer: Any,
    ids: Sequence[int],
    logprobs: Sequence[float],
    *,
    offset: int,
    as_ids: bool,
) -> JsonObject:
    """The `logprobs` of a piece of a text completion, whose text is at `offset`."""
    tokens = [token_text(tokenizer, token_id, as_ids=as_ids) for token_id in ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": list(logprobs),
        "top_logprobs": [{token: value} for token, value in zip(tokens, logprobs, strict=True)],
        "text_offset": offsets,
    }


def token_text(tokenizer: Any, token_id: int, *, as_ids: bool) -> str:
    if as_ids:
        return f"token_id:{token_id}"
    return str(tokenizer.decode([token_id], clean_up_tokenization_spaces=False))
