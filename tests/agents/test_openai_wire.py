"""Replies of OpenAI's chat completions API and of compatible servers."""

from typing import Any

import pytest
from chat_stub import chat_stub

from agents.stub_agents import (
    ask,
    call_message,
    chat_response,
    openai_agent,
    tool_message,
    user_message,
)
from ludus.agents.agent import FinishReason, Reply
from ludus.agents.api_agent import Rate
from ludus.agents.openai import OpenAIAgent
from ludus.data.episode import Usage
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject


async def parse_message(message: Any, *messages: Message, **fields: Any) -> Reply:
    """The reply that is parsed from a server's message."""
    with chat_stub(script=[chat_response(message, **fields)]) as stub:
        async with openai_agent(stub) as agent:
            return await ask(agent, *messages)


def raw_call(name: str = "f", arguments: Any = "{}", **fields: Any) -> JsonObject:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **fields}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("words", "words"),
        (None, ""),
        ([{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}], "two parts"),
        ([{"type": "image"}, "odd", {"text": None}], ""),
    ],
)
async def test_content_is_parsed_in_every_format(content: Any, text: str) -> None:
    assert (await parse_message({"content": content})).message.content == text


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_is_separate_from_content(name: str) -> None:
    reply = await parse_message({"content": "content <think>", name: "reasoning"})
    assert (reply.message.reasoning_content, reply.message.content) == (
        "reasoning",
        "content <think>",
    )


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nhm\n</think>\n\nyes", "hm", "yes"),
        (" <think>hm</think>yes", "hm", "yes"),
        ("hm\n</think>\nyes", "hm", "yes"),
        ("<think>hm, and then it was cut", "hm, and then it was cut", ""),
        ("<think></think>yes", None, "yes"),
        ("I like <think> tags </think>.", None, "I like <think> tags </think>."),
        ("plain", None, "plain"),
    ],
)
async def test_think_tags_are_split_off(text: str, reasoning: str | None, content: str) -> None:
    message = (await parse_message({"content": text})).message
    assert (message.reasoning_content, message.content) == (reasoning, content)


async def test_unique_call_ids_are_kept() -> None:
    reply = await parse_message({"tool_calls": [raw_call(id="x"), raw_call(id="y")]})
    assert [call.id for call in reply.message.tool_calls or ()] == ["x", "y"]


async def test_missing_and_repeated_call_ids_are_replaced_reproducibly() -> None:
    messages = (
        user_message("a"),
        call_message("{}", call_id="old"),
        tool_message("b", call_id="old"),
    )
    calls = [
        raw_call(id=""),
        raw_call(),
        raw_call(id="x"),
        raw_call(id="x"),
        raw_call(id="old"),
        raw_call(id=7),
    ]
    first = await parse_message({"tool_calls": calls}, *messages)
    again = await parse_message({"tool_calls": calls}, *messages)
    ids = [call.id for call in first.message.tool_calls or ()]
    assert ids == ["call_3_0", "call_3_1", "x", "call_3_3", "call_3_4", "call_3_5"]
    assert again.message == first.message


async def test_a_new_call_id_does_not_collide_with_the_servers() -> None:
    reply = await parse_message({"tool_calls": [raw_call(id="call_1_1"), raw_call()]})
    assert [call.id for call in reply.message.tool_calls or ()] == ["call_1_1", "call_1_1_"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": ', '{"a": '),
        ({"a": "ä"}, '{"a": "ä"}'),
        (None, "{}"),
        ([1], "[1]"),
    ],
)
async def test_arguments_are_kept_as_the_model_wrote_them(raw: Any, expected: str) -> None:
    reply = await parse_message({"tool_calls": [raw_call(arguments=raw)]}, finish="tool_calls")
    assert [call.function.arguments for call in reply.message.tool_calls or ()] == [expected]


async def test_a_legacy_function_call_is_parsed() -> None:
    reply = await parse_message({"function_call": {"name": "f", "arguments": "{}"}})
    (call,) = reply.message.tool_calls or ()
    assert (call.id, call.function.name) == ("call_1_0", "f")


async def test_malformed_calls_are_kept_without_a_name() -> None:
    reply = await parse_message({"tool_calls": ["odd", {"function": None}, {"id": "x"}]})
    assert [call.function.name for call in reply.message.tool_calls or ()] == ["", "", ""]


@pytest.mark.parametrize(
    ("raw", "finish_reason"),
    [
        ("stop", FinishReason.STOP),
        ("tool_calls", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.REFUSED),
        (None, FinishReason.STOP),
    ],
)
async def test_the_finish_reason_is_mapped(raw: Any, finish_reason: FinishReason) -> None:
    assert (await parse_message({"content": "x"}, finish=raw)).finish_reason is finish_reason


async def test_a_refusal_is_the_content_and_the_finish_reason() -> None:
    reply = await parse_message({"content": None, "refusal": "I will not."})
    assert (reply.message.content, reply.finish_reason) == ("I will not.", FinishReason.REFUSED)


# Usage


async def test_usage_is_parsed_with_its_details() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 15},
    }
    assert (await parse_message({"content": "x"}, usage=usage)).usage == Usage(
        prompt_tokens=100, completion_tokens=20, cached_tokens=60, reasoning_tokens=15
    )


@pytest.mark.parametrize(
    "usage", [None, [], {"prompt_tokens": None, "prompt_tokens_details": None}, {"cost": "free"}]
)
async def test_missing_usage_is_zero(usage: Any) -> None:
    assert (await parse_message({"content": "x"}, usage=usage)).usage == Usage()


async def test_the_gateways_cost_counts_if_the_price_is_unknown() -> None:
    usage = {"prompt_tokens": 1_000_000, "cost": 0.25}
    assert (await parse_message({"content": "x"}, usage=usage)).usage.cost == 0.25
    with chat_stub(script=[chat_response({"content": "x"}, usage=usage)]) as stub:
        async with openai_agent(stub, prices={"m": Rate(input=3, output=0)}) as agent:
            assert agent.has_price
            assert (await ask(agent)).usage.cost == pytest.approx(3.0)


async def test_openais_models_have_their_listed_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
    with chat_stub(script=[chat_response({"content": "x"}, usage=usage)]) as stub:
        monkeypatch.setattr(OpenAIAgent, "default_base_url", stub.url)
        async with OpenAIAgent("gpt-4o-mini", key="abcd") as agent:
            assert (await ask(agent)).usage.cost == pytest.approx(0.15)
