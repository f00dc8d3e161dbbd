"""Items of the Responses API as chat messages."""

from __future__ import annotations

from typing import Any

from ludus.data.messages import ImagePart, Message
from ludus.serve.model.responses_schema import ResponsesBody

PIXEL = "data:image/png;base64,iVBORw0KGgo="


def chat_messages(items: Any, **fields: Any) -> tuple[Message, ...]:
    body = ResponsesBody.model_validate({"input": items, **fields})
    return body.to_chat_body().to_messages()


def call(call_id: str) -> dict[str, Any]:
    arguments = '{"a": 1}'
    return {"type": "function_call", "call_id": call_id, "name": "add", "arguments": arguments}


def result(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": f"result of {call_id}"}


def reply(text: str) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "status": "completed", "content": parts}


def test_text_is_a_message_of_the_user() -> None:
    (message,) = chat_messages("Hello")
    assert (message.role, message.content) == ("user", "Hello")


def test_reasoning_text_and_calls_of_a_reply_are_one_message() -> None:
    reasoning = {"type": "reasoning", "summary": [], "content": [{"text": "Hm."}], "id": "rs_1"}
    asked = {"role": "user", "content": [{"type": "input_text", "text": "Add."}]}
    items = [asked, reasoning, reply("I add."), call("a"), call("b"), result("a"), result("b")]
    user, assistant, *tools = chat_messages(items)
    assert (user.role, user.content) == ("user", "Add.")
    assert (assistant.reasoning_content, assistant.content) == ("Hm.", "I add.")
    assert [each.id for each in assistant.tool_calls or ()] == ["a", "b"]
    assert [(tool.role, tool.tool_call_id, tool.content) for tool in tools] == [
        ("tool", "a", "result of a"),
        ("tool", "b", "result of b"),
    ]


def test_replies_in_a_row_stay_apart_and_text_around_a_call_is_one_reply() -> None:
    assert [message.text for message in chat_messages([reply("One."), reply("Two.")])] == [
        "One.",
        "Two.",
    ]
    (message,) = chat_messages([reply("Before."), call("a"), reply("After.")])
    assert message.text == "Before.\nAfter." and len(message.tool_calls or ()) == 1


def test_a_summary_stands_for_reasoning_that_a_client_has_dropped() -> None:
    summary = {"type": "reasoning", "id": "rs_1", "summary": [{"text": "In short."}]}
    (message,) = chat_messages([summary, reply("Yes.")])
    assert message.reasoning_content == "In short."


def test_instructions_and_a_system_message_are_one() -> None:
    items = [{"role": "developer", "content": "Use tools."}, {"role": "user", "content": "Add."}]
    system, user = chat_messages(items, instructions="Be brief.")
    assert (system.role, system.content) == ("system", "Be brief.\nUse tools.")
    assert user.content == "Add."
    alone, _ = chat_messages("Add.", instructions="Be brief.")
    assert (alone.role, alone.content) == ("system", "Be brief.")


def test_images_are_parts() -> None:
    parts = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": PIXEL}]
    (message,) = chat_messages([{"role": "user", "content": parts}])
    assert isinstance(message.content[1], ImagePart)
    assert message.content[1].image_url.url == PIXEL


def test_tools_are_nested_as_in_chat_completions() -> None:
    parameters = {"type": "object", "properties": {}}
    tool = {"type": "function", "name": "add", "parameters": parameters, "strict": True}
    body = ResponsesBody.model_validate({"input": "Add.", "tools": [tool]})
    function = {"name": "add", "parameters": parameters}
    assert body.to_chat_body().offered_tools == [{"type": "function", "function": function}]
