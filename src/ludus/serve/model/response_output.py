"""The output items of `/v1/responses`, and the events that announce them in a stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from ludus.data.messages import Call, Message
from ludus.data.tool_schema import JsonObject
from ludus.policy.chat.reply_stream import ReplyDelta
from ludus.serve.model.reply_formats import new_id

Status = Literal["in_progress", "completed", "incomplete"]


@dataclass(slots=True)
class TextItem:
    """A message or the reasoning before it, with the text so far."""

    kind: Literal["message", "reasoning"]
    index: int
    """Its place among the items."""
    text: str = ""
    id: str = field(init=False)

    def __post_init__(self) -> None:
        self.id = new_id("msg" if self.kind == "message" else "rs")

    def to_json(self, status: Status) -> JsonObject:
        content = [] if status == "in_progress" else [self._part(self.text)]
        item = {"id": self.id, "type": self.kind, "status": status, "content": content}
        if self.kind == "message":
            return {**item, "role": "assistant"}
        return {**item, "summary": []}

    def open(self) -> list[JsonObject]:
        added = {"output_index": self.index, "item": self.to_json("in_progress")}
        return [
            {"type": "response.output_item.added", **added},
            {"type": "response.content_part.added", **self._place, "part": self._part("")},
        ]

    def add(self, text: str) -> JsonObject:
        self.text += text
        return {"type": f"{self._text_event}.delta", **self._place, "delta": text, **self._logprobs}

    def close(self, status: Status) -> list[JsonObject]:
        place, text = self._place, self.text
        return [
            {"type": f"{self._text_event}.done", **place, "text": text, **self._logprobs},
            {"type": "response.content_part.done", **place, "part": self._part(text)},
            {
                "type": "response.output_item.done",
                "output_index": self.index,
                "item": self.to_json(status),
            },
        ]

    @property
    def _place(self) -> JsonObject:
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}

    @property
    def _text_event(self) -> str:
        is_message = self.kind == "message"
        return "response.output_text" if is_message else "response.reasoning_text"

    @property
    def _logprobs(self) -> JsonObject:
        return {"logprobs": []} if self.kind == "message" else {}

    def _part(self, text: str) -> JsonObject:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponseOutput:
    """Builds items from the pieces of a reply; its methods return the events of a stream.

    An item ends where a piece of another kind begins, so that the items are in the order in which
    the model wrote them.
    """

    def __init__(self) -> None:
        self.items: list[JsonObject] = []
        """Those that have ended."""
        self.reasoning = ""
        self._open: TextItem | None = None

    def add(self, delta: ReplyDelta) -> list[JsonObject]:
        if delta.call is not None:
            return [*self._close("completed"), *self._add_call(delta.call)]
        if delta.reasoning:
            self.reasoning += delta.reasoning
            return self._add_text("reasoning", delta.reasoning)
        return self._add_text("message", delta.content)

    def finish(self, *, complete: bool) -> list[JsonObject]:
        """End the last item; a reply without any is an empty message."""
        events = []
        if self._open is None and not self.items:
            self._open = TextItem("message", 0)
            events = self._open.open()
        return [*events, *self._close("completed" if complete else "incomplete")]

    def _add_text(self, kind: Literal["message", "reasoning"], text: str) -> list[JsonObject]:
        if self._open is not None and self._open.kind == kind:
            return [self._open.add(text)]
        # What separates it from an earlier part is not in either item.
        text = text.lstrip()
        if not text:
            return []
        events = self._close("completed")
        self._open = TextItem(kind, len(self.items))
        return [*events, *self._open.open(), self._open.add(text)]

    def _add_call(self, call: Call) -> list[JsonObject]:
        """All at once: calls are parsed when they are complete."""
        index, arguments = len(self.items), call.function.arguments
        item = {
            "id": new_id("fc"),
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.function.name,
            "arguments": arguments,
        }
        self.items.append(item)
        place = {"item_id": item["id"], "output_index": index}
        added = {**item, "status": "in_progress", "arguments": ""}
        done = {"name": call.function.name, "arguments": arguments}
        return [
            {"type": "response.output_item.added", "output_index": index, "item": added},
            {"type": "response.function_call_arguments.delta", **place, "delta": arguments},
            {"type": "response.function_call_arguments.done", **place, **done},
            {"type": "response.output_item.done", "output_index": index, "item": item},
        ]

    def _close(self, status: Status) -> list[JsonObject]:
        if self._open is None:
            return []
        item, self._open = self._open, None
        self.items.append(item.to_json(status))
        return item.close(status)


def split_message(message: Message) -> Iterable[ReplyDelta]:
    """The pieces of a reply that was not streamed."""
    if message.reasoning_content:
        yield ReplyDelta(reasoning=message.reasoning_content)
    if message.text:
        yield ReplyDelta(content=message.text)
    for call in message.tool_calls or ():
        yield ReplyDelta(call=call)
