"""`/v1/chat/completions`: a reply to messages, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial

from ludus.data.tool_schema import JsonObject
from ludus.policy.chat.reply_stream import ReplyDelta
from ludus.serve.model.chat_sampler import ChatCall, ChatChoice, ChatSampler, Reply
from ludus.serve.model.concurrent_choices import PutEvent, stream_choices
from ludus.serve.model.reply_formats import (
    CompletionEvents,
    chat_logprobs,
    delta_to_json,
    envelope,
    message_to_json,
    usage,
)
from ludus.serve.model.request_schema import ChatBody


class ChatCompletions:
    """Answers chat requests."""

    body_type = ChatBody

    def __init__(self, sampler: ChatSampler, model: str) -> None:
        self._sampler, self._model = sampler, model

    async def open(self, body: ChatBody, session_id: str | None) -> ChatCall:
        return await self._sampler.open(body, session_id)

    async def complete(self, call: ChatCall) -> JsonObject:
        """Sample all choices, and return the response."""
        replies = await self._sampler.sample(call)
        response = envelope("chat.completion", "chatcmpl", self._model)
        response["choices"] = [
            self._choice_to_json(call.body, choice, reply)
            for choice, reply in zip(call.choices, replies, strict=True)
        ]
        response["usage"] = _usage(call, replies)
        if call.body.return_token_ids:
            response["prompt_token_ids"] = list(call.prompt_ids)
        return response

    def _choice_to_json(self, body: ChatBody, choice: ChatChoice, reply: Reply) -> JsonObject:
        completion = reply.generation.completion
        fields: JsonObject = {
            "index": choice.index,
            "message": message_to_json(reply.message),
            "logprobs": None,
            "finish_reason": reply.finish_reason,
        }
        if body.logprobs:
            content = self._logprobs(body, completion.ids, completion.logprobs)
            fields["logprobs"] = {"content": content}
        if body.return_token_ids:
            fields["token_ids"] = list(completion.ids)
        return fields

    def _logprobs(
        self, body: ChatBody, ids: Sequence[int], logprobs: Sequence[float]
    ) -> list[JsonObject]:
        as_ids = body.return_tokens_as_token_ids
        return chat_logprobs(self._sampler.tokenizer, ids, logprobs, as_ids=as_ids)

    def stream(self, call: ChatCall) -> AsyncGenerator[bytes, None]:
        """Sample all choices, and yield server-sent events as tokens arrive."""
        events = CompletionEvents(envelope("chat.completion.chunk", "chatcmpl", self._model))
        with_usage = call.body.stream_options.include_usage
        return stream_choices(
            [partial(self._stream_choice, call, choice, events) for choice in call.choices],
            at_end=lambda replies: events.end(_usage(call, replies) if with_usage else None),
            on_error=events.error,
        )

    async def _stream_choice(
        self, call: ChatCall, choice: ChatChoice, events: CompletionEvents, put_event: PutEvent
    ) -> Reply:
        """Sample one choice, and put its chunks as tokens arrive."""
        body = call.body
        waiting: tuple[list[int], list[float]] = ([], [])
        """Tokens whose log-probabilities are sent with the next chunk."""
        num_calls = 0

        def put(delta: JsonObject, finish: str | None = None) -> None:
            chunk: JsonObject = {
                "index": choice.index,
                "delta": delta,
                "logprobs": None,
                "finish_reason": finish,
            }
            if body.logprobs and waiting[0]:
                content = self._logprobs(body, *waiting)
                chunk["logprobs"] = {"content": content}
            if body.return_token_ids:
                chunk["token_ids"] = list(waiting[0])
            waiting[0].clear()
            waiting[1].clear()
            put_event(events.chunk(chunk))

        def on_deltas(
            deltas: Sequence[ReplyDelta], ids: Sequence[int], logprobs: Sequence[float]
        ) -> None:
            nonlocal num_calls
            waiting[0].extend(ids)
            waiting[1].extend(logprobs)
            for delta in deltas:
                put(delta_to_json(delta, num_calls))
                num_calls += delta.call is not None

        put({"role": "assistant", "content": ""})
        reply = await self._sampler.stream(call, choice, on_deltas)
        put({}, reply.finish_reason)
        return reply


def _usage(call: ChatCall, replies: Sequence[Reply]) -> JsonObject:
    num_sampled = sum(len(reply.generation.completion.ids) for reply in replies)
    return usage(len(call.prompt_ids), num_sampled)
