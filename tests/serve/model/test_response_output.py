"""Output items from the pieces of a reply."""

from __future__ import annotations

from typing import Any

from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from ludus.data.messages import Call, Function
from ludus.policy.chat.reply_parser import ReplyDelta
from ludus.serve.model.responses import ResponseOutput

ITEMS: TypeAdapter[Any] = TypeAdapter(list[ResponseOutputItem])
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CALL = Call(id="call_1", function=Function(name="add", arguments='{"a": 1}'))


def build(*deltas: ReplyDelta, complete: bool = True) -> tuple[list[Any], list[dict[str, Any]]]:
    output = ResponseOutput()
    events = [event for delta in deltas for event in output.add(delta)]
    events += output.finish(complete=complete)
    for number, event in enumerate(events):
        EVENTS.validate_python({**event, "sequence_number": number})
    return ITEMS.validate_python(output.items), events


def test_reasoning_text_and_call_are_items_in_this_order() -> None:
    items, events = build(
        ReplyDelta(reasoning="Hm"),
        ReplyDelta(reasoning=", add."),
        ReplyDelta(content="I add."),
        ReplyDelta(call=CALL),
    )
    reasoning, message, call = items
    assert reasoning.content[0].text == "Hm, add." and message.content[0].text == "I add."
    assert (call.call_id, call.name, call.arguments) == ("call_1", "add", '{"a": 1}')
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1, 2]
    assert [event["item"]["id"] for event in added] == [item.id for item in items]
    assert {item.status for item in items} == {"completed"}


def test_text_after_a_call_is_another_item_without_what_separates_them() -> None:
    items, _ = build(
        ReplyDelta(content="Before."), ReplyDelta(call=CALL), ReplyDelta(content="\nAfter.")
    )
    assert [item.type for item in items] == ["message", "function_call", "message"]
    assert items[2].content[0].text == "After."


def test_the_last_text_of_a_reply_that_was_cut_off_is_incomplete() -> None:
    items, _ = build(ReplyDelta(reasoning="Hm."), ReplyDelta(content="I ad"), complete=False)
    assert [item.status for item in items] == ["completed", "incomplete"]


def test_an_empty_reply_is_an_empty_message() -> None:
    (item,), events = build()
    assert item.type == "message" and item.content[0].text == ""
    assert events[0]["type"] == "response.output_item.added"
