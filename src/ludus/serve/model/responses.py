"""`/v1/responses`: OpenAI's Responses API, in front of the sampler of chat completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from ludus.data.tool_schema import JsonObject
from ludus.policy.chat.reply_stream import ReplyDelta
from ludus.serve.model.api_errors import ApiError
from ludus.serve.model.chat_sampler import ChatCall, ChatSampler, Reply
from ludus.serve.model.concurrent_choices import PutEvent, stream_choices
from ludus.serve.model.event_stream import encode_event
from ludus.serve.model.reply_formats import new_id
from ludus.serve.model.response_output import ResponseOutput, split_message
from ludus.serve.model.responses_schema import ResponsesBody

_PARAMS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
}
"""Fields of a response request, by their names in the chat request."""


@dataclass(slots=True)
class ResponsesCall:
    """A chat call, and what its response begins with."""

    chat: ChatCall
    head: JsonObject

    @property
    def stack(self) -> AsyncExitStack:
        return self.chat.stack

    @property
    def session_ids(self) -> list[str]:
        return self.chat.session_ids


class EventSequence:
    """Numbers the events of a stream."""

    def __init__(self) -> None:
        self._next = 0

    def encode(self, data: JsonObject) -> bytes:
        number, self._next = self._next, self._next + 1
        return encode_event({**data, "sequence_number": number}, name=data["type"])


class Responses:
    """Answers requests of the Responses API. Responses are not stored."""

    body_type = ResponsesBody

    def __init__(self, sampler: ChatSampler, model: str) -> None:
        self._sampler, self._model = sampler, model

    async def open(self, body: ResponsesBody, session_id: str | None) -> ResponsesCall:
        try:
            chat = await self._sampler.open(body.to_chat_body(), session_id)
        except ApiError as error:
            error.param = _PARAMS.get(error.param or "", error.param)
            raise
        return ResponsesCall(chat, self._head(body, chat))

    async def complete(self, call: ResponsesCall) -> JsonObject:
        """Sample the reply, and return the response."""
        (reply,) = await self._sampler.sample(call.chat)
        output = ResponseOutput()
        for delta in split_message(reply.message):
            output.add(delta)
        output.finish(complete=_is_complete(reply))
        return self._response(call, reply, output)

    def stream(self, call: ResponsesCall) -> AsyncGenerator[bytes, None]:
        """Sample the reply, and yield server-sent events as tokens arrive."""
        sequence = EventSequence()

        def on_error(error: ApiError) -> bytes:
            details = {"code": error.code or "server_error", "message": str(error)}
            response = {**call.head, "status": "failed", "error": details}
            return sequence.encode({"type": "response.failed", "response": response})

        return stream_choices(
            [partial(self._stream_reply, call, sequence)],
            at_end=lambda replies: (),
            on_error=on_error,
        )

    async def _stream_reply(
        self, call: ResponsesCall, sequence: EventSequence, put_event: PutEvent
    ) -> Reply:
        output = ResponseOutput()

        def put(events: Sequence[JsonObject]) -> None:
            for each in events:
                put_event(sequence.encode(each))

        def on_deltas(
            deltas: Sequence[ReplyDelta], ids: Sequence[int], logprobs: Sequence[float]
        ) -> None:
            for delta in deltas:
                put(output.add(delta))

        put([{"type": "response.created", "response": call.head}])
        put([{"type": "response.in_progress", "response": call.head}])
        reply = await self._sampler.stream(call.chat, call.chat.choices[0], on_deltas)
        put(output.finish(complete=_is_complete(reply)))
        response = self._response(call, reply, output)
        put([{"type": f"response.{response['status']}", "response": response}])
        return reply

    def _head(self, body: ResponsesBody, chat: ChatCall) -> JsonObject:
        """A response that has no output yet."""
        sampling = chat.plan.sampling
        return {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "model": self._model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": body.reasoning and body.reasoning.model_dump(),
            "store": False,
            "temperature": sampling.temperature,
            "text": body.text.model_dump(),
            "tool_choice": body.tool_choice,
            "tools": [tool.model_dump() for tool in body.tools],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _response(self, call: ResponsesCall, reply: Reply, output: ResponseOutput) -> JsonObject:
        is_complete = _is_complete(reply)
        return {
            **call.head,
            "status": "completed" if is_complete else "incomplete",
            "completed_at": int(time.time()) if is_complete else None,
            "incomplete_details": None if is_complete else {"reason": "max_output_tokens"},
            "output": output.items,
            "usage": self._usage(call, reply, output.reasoning),
        }

    def _usage(self, call: ResponsesCall, reply: Reply, reasoning: str) -> JsonObject:
        num_input, num_output = len(call.chat.prompt_ids), len(reply.generation.completion.ids)
        num_reasoning = 0
        if reasoning:
            encoded = self._sampler.tokenizer(reasoning, add_special_tokens=False)
            num_reasoning = min(len(encoded["input_ids"]), num_output)
        return {
            "input_tokens": num_input,
            # The engine does not tell which tokens of a prompt it has reused.
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": num_reasoning},
            "total_tokens": num_input + num_output,
        }


def _is_complete(reply: Reply) -> bool:
    return reply.finish_reason != "length"
