"""`/v1/chat/completions`: a reply to messages, whole or as a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial

from ludus.data.tool_schema import JsonObject
from ludus.policy.chat.reply_parser import ReplyDelta
from ludus.serve.model.api_errors import ApiError, new_id
from ludus.serve.model.chat_sampler import ChatCall, ChatChoice, ChatSampler, Reply
from ludus.serve.model.endpoint import Endpoint, PutEvent, encode_sse, stream_choices
from ludus.serve.model.requests import ChatBody
from ludus.serve.model.text_stream import REPLACEMENT_CHAR


class ChatCompletions(Endpoint[ChatBody]):
    """Answers chat requests."""

    body_type = ChatBody

    def __init__(self, sampler: ChatSampler, model: str) -> None:
        self._sampler, self._model = sampler, model

    async def open(self, body: ChatBody, session_id: str | None) -> ChatCall:
        call = await self._sampler.open(body, session_id)
        call.head = {
            "id": new_id("chatcmpl", "-"),
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": self._model,
        }
        return call

    async def complete(self, call: ChatCall) -> JsonObject:
        replies = await self._sampler.sample(call)
        choices = [
            self._choice_to_json(call.body, choice, reply)
            for choice, reply in zip(call.choices, replies, strict=True)
        ]
        response = {**call.head, "choices": choices, "usage": _usage(call, replies)}
        if call.body.return_token_ids:
            response["prompt_token_ids"] = list(call.prompt_ids)
        return response

    def _choice_to_json(self, body: ChatBody, choice: ChatChoice, reply: Reply) -> JsonObject:
        completion, message = reply.generation.completion, reply.message
        shown: JsonObject = {
            "role": "assistant",
            "content": message.text or (None if message.tool_calls else ""),
            "refusal": None,
        }
        if message.reasoning_content:
            shown["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            shown["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        fields: JsonObject = {
            "index": choice.index,
            "message": shown,
            "logprobs": None,
            "finish_reason": reply.finish_reason,
        }
        if body.logprobs:
            fields["logprobs"] = self._logprobs(body, completion.ids, completion.logprobs)
        if body.return_token_ids:
            fields["token_ids"] = list(completion.ids)
        return fields

    def _logprobs(
        self, body: ChatBody, ids: Sequence[int], logprobs: Sequence[float]
    ) -> JsonObject:
        entries = []
        for token_id, logprob in zip(ids, logprobs, strict=True):
            if body.return_tokens_as_token_ids:
                text, encoded = f"token_id:{token_id}", None
            else:
                text = self._sampler.tokenizer.decode(
                    [token_id], clean_up_tokenization_spaces=False
                )
                # A token may be a part of a character, whose bytes are not known here.
                is_text = REPLACEMENT_CHAR not in text
                encoded = list(text.encode("utf-8", "replace")) if is_text else None
            entry = {"token": text, "logprob": logprob, "bytes": encoded, "top_logprobs": []}
            entries.append(entry)
        return {"content": entries}

    def stream(self, call: ChatCall) -> AsyncGenerator[bytes, None]:
        def end(replies: Sequence[Reply]) -> Iterator[bytes]:
            if call.body.stream_options.include_usage:
                yield encode_sse({**call.head, "choices": [], "usage": _usage(call, replies)})
            yield b"data: [DONE]\n\n"

        def fail(error: ApiError) -> bytes:
            return encode_sse(error.to_json())

        choices = [partial(self._stream_choice, call, choice) for choice in call.choices]
        return stream_choices(choices, at_end=end, on_error=fail)

    async def _stream_choice(
        self, call: ChatCall, choice: ChatChoice, put_event: PutEvent
    ) -> Reply:
        """Sample one choice, and put its chunks as tokens arrive."""
        body = call.body
        ids: list[int] = []
        logprobs: list[float] = []
        """Tokens, with their log-probabilities, that are sent with the next chunk."""
        num_calls = 0

        def put(delta: JsonObject, finish: str | None = None) -> None:
            chunk: JsonObject = {
                "index": choice.index,
                "delta": delta,
                "logprobs": self._logprobs(body, ids, logprobs) if body.logprobs and ids else None,
                "finish_reason": finish,
            }
            if body.return_token_ids:
                chunk["token_ids"] = list(ids)
            ids.clear()
            logprobs.clear()
            put_event(encode_sse({**call.head, "choices": [chunk]}))

        def on_deltas(
            deltas: Sequence[ReplyDelta], new_ids: Sequence[int], new_logprobs: Sequence[float]
        ) -> None:
            nonlocal num_calls
            ids.extend(new_ids)
            logprobs.extend(new_logprobs)
            for delta in deltas:
                if delta.call is not None:
                    put({"tool_calls": [{"index": num_calls, **delta.call.model_dump()}]})
                    num_calls += 1
                elif delta.reasoning:
                    put({"reasoning_content": delta.reasoning})
                else:
                    put({"content": delta.content})

        put({"role": "assistant", "content": ""})
        reply = await self._sampler.stream(call, choice, on_deltas)
        put({}, reply.finish_reason)
        return reply


def _usage(call: ChatCall, replies: Sequence[Reply]) -> JsonObject:
    num_prompt = len(call.prompt_ids)
    num_sampled = sum(len(reply.generation.completion.ids) for reply in replies)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_sampled,
        "total_tokens": num_prompt + num_sampled,
    }
