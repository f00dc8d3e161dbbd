"""`/v1/responses`: OpenAI's Responses API, in front of the sampler of chat completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from itertools import count
from typing import Literal

from ludus.data.messages import Call
from ludus.data.tool_schema import JsonObject
from ludus.policy.chat.reply_parser import ReplyDelta
from ludus.serve.model.api_errors import ApiError, new_id
from ludus.serve.model.chat_sampler import ChatCall, ChatSampler, Reply
from ludus.serve.model.endpoint import Endpoint, PutEvent, encode_sse, stream_choices
from ludus.serve.model.responses_schema import ResponsesBody

Kind = Literal["message", "reasoning"]
_PARAMS = {"messages": "input", "max_completion_tokens": "max_output_tokens"}
"""Fields of a response request, by their names in the chat request."""


class Responses(Endpoint[ResponsesBody]):
    """Answers requests of the Responses API. Responses are not stored."""

    body_type = ResponsesBody

    def __init__(self, sampler: ChatSampler, model: str) -> None:
        self._sampler, self._model = sampler, model

    async def open(self, body: ResponsesBody, session_id: str | None) -> ChatCall:
        try:
            call = await self._sampler.open(body.to_chat_body(), session_id)
        except ApiError as error:
            error.param = _PARAMS.get(error.param or "", error.param)
            raise
        sampling = call.plan.sampling
        # A response that has no output yet.
        call.head = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "model": self._model,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": None,
            "store": False,
            "temperature": sampling.temperature,
            "text": body.text.model_dump(),
            "tool_choice": body.tool_choice,
            "tools": [tool.model_dump() for tool in body.tools],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
        }
        return call

    async def complete(self, call: ChatCall) -> JsonObject:
        (reply,) = await self._sampler.sample(call)
        output, message = ResponseOutput(), reply.message
        if message.reasoning_content:
            output.add(ReplyDelta(reasoning=message.reasoning_content))
        if message.text:
            output.add(ReplyDelta(content=message.text))
        for each in message.tool_calls or ():
            output.add(ReplyDelta(call=each))
        output.finish(complete=_is_complete(reply))
        return self._response(call, reply, output)

    def stream(self, call: ChatCall) -> AsyncGenerator[bytes, None]:
        numbers = count()

        def encode(data: JsonObject) -> bytes:
            return encode_sse({**data, "sequence_number": next(numbers)}, name=data["type"])

        def fail(error: ApiError) -> bytes:
            details = {"code": error.code or "server_error", "message": str(error)}
            response = {**call.head, "status": "failed", "error": details}
            return encode({"type": "response.failed", "response": response})

        async def stream_reply(put_event: PutEvent) -> Reply:
            output = ResponseOutput()

            def put(events: Sequence[JsonObject]) -> None:
                for each in events:
                    put_event(encode(each))

            def on_deltas(
                deltas: Sequence[ReplyDelta], ids: Sequence[int], logprobs: Sequence[float]
            ) -> None:
                for delta in deltas:
                    put(output.add(delta))

            put([{"type": "response.created", "response": call.head}])
            put([{"type": "response.in_progress", "response": call.head}])
            reply = await self._sampler.stream(call, call.choices[0], on_deltas)
            put(output.finish(complete=_is_complete(reply)))
            response = self._response(call, reply, output)
            put([{"type": f"response.{response['status']}", "response": response}])
            return reply

        return stream_choices([stream_reply], at_end=lambda replies: (), on_error=fail)

    def _response(self, call: ChatCall, reply: Reply, output: ResponseOutput) -> JsonObject:
        is_complete = _is_complete(reply)
        num_input, num_output = len(call.prompt_ids), len(reply.generation.completion.ids)
        num_reasoning = 0
        if output.reasoning:
            encoded = self._sampler.tokenizer(output.reasoning, add_special_tokens=False)
            num_reasoning = min(len(encoded["input_ids"]), num_output)
        return {
            **call.head,
            "status": "completed" if is_complete else "incomplete",
            "completed_at": int(time.time()) if is_complete else None,
            "incomplete_details": None if is_complete else {"reason": "max_output_tokens"},
            "output": output.items,
            "usage": {
                "input_tokens": num_input,
                # The engine does not tell which tokens of a prompt it has reused.
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": num_output,
                "output_tokens_details": {"reasoning_tokens": num_reasoning},
                "total_tokens": num_input + num_output,
            },
        }


def _is_complete(reply: Reply) -> bool:
    return reply.finish_reason != "length"


class ResponseOutput:
    """Builds items from the pieces of a reply; its methods return the events of a stream.

    An item ends where a piece of another kind begins, so that the items are in the order in which
    the model wrote them.
    """

    def __init__(self) -> None:
        self.items: list[JsonObject] = []
        """Those that have ended."""
        self.reasoning = ""
        self._kind: Kind | None = None
        """Kind of the open item."""
        self._id = self._text = ""

    def add(self, delta: ReplyDelta) -> list[JsonObject]:
        if delta.call is not None:
            return [*self._close("completed"), *self._add_call(delta.call)]
        self.reasoning += delta.reasoning
        kind: Kind = "reasoning" if delta.reasoning else "message"
        text, events = delta.reasoning or delta.content, []
        if kind != self._kind:
            # What separates it from an earlier part is not in either item.
            text = text.lstrip()
            if not text:
                return []
            events = [*self._close("completed"), *self._open(kind)]
        self._text += text
        delta_event = {"type": f"{self._text_event}.delta", **self._place, "delta": text}
        return [*events, {**delta_event, **self._logprobs}]

    def finish(self, *, complete: bool) -> list[JsonObject]:
        """End the last item; a reply without any is an empty message."""
        events = [] if self._kind is not None or self.items else self._open("message")
        return [*events, *self._close("completed" if complete else "incomplete")]

    def _open(self, kind: Kind) -> list[JsonObject]:
        self._kind, self._text = kind, ""
        self._id = new_id("msg" if kind == "message" else "rs")
        item = self._item("in_progress", [])
        return [
            {"type": "response.output_item.added", "output_index": len(self.items), "item": item},
            {"type": "response.content_part.added", **self._place, "part": self._part()},
        ]

    def _close(self, status: str) -> list[JsonObject]:
        if self._kind is None:
            return []
        part, place, text = self._part(), self._place, self._text
        item = self._item(status, [part])
        events = [
            {"type": f"{self._text_event}.done", **place, "text": text, **self._logprobs},
            {"type": "response.content_part.done", **place, "part": part},
            {"type": "response.output_item.done", "output_index": len(self.items), "item": item},
        ]
        self.items.append(item)
        self._kind = None
        return events

    def _add_call(self, call: Call) -> list[JsonObject]:
        """All at once: calls are parsed when they are complete."""
        index, name, arguments = len(self.items), call.function.name, call.function.arguments
        item = {
            "id": new_id("fc"),
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": name,
            "arguments": arguments,
        }
        self.items.append(item)
        place = {"item_id": item["id"], "output_index": index}
        added = {**item, "status": "in_progress", "arguments": ""}
        done = {"name": name, "arguments": arguments}
        return [
            {"type": "response.output_item.added", "output_index": index, "item": added},
            {"type": "response.function_call_arguments.delta", **place, "delta": arguments},
            {"type": "response.function_call_arguments.done", **place, **done},
            {"type": "response.output_item.done", "output_index": index, "item": item},
        ]

    def _item(self, status: str, content: list[JsonObject]) -> JsonObject:
        item: JsonObject = {"id": self._id, "type": self._kind, "status": status}
        item["content"] = content
        if self._kind == "message":
            return {**item, "role": "assistant"}
        return {**item, "summary": []}

    def _part(self) -> JsonObject:
        if self._kind == "reasoning":
            return {"type": "reasoning_text", "text": self._text}
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": []}

    @property
    def _place(self) -> JsonObject:
        return {"item_id": self._id, "output_index": len(self.items), "content_index": 0}

    @property
    def _text_event(self) -> str:
        is_message = self._kind == "message"
        return "response.output_text" if is_message else "response.reasoning_text"

    @property
    def _logprobs(self) -> JsonObject:
        return {"logprobs": []} if self._kind == "message" else {}
