"""What servers of OpenAI's chat API reply, and what is made of it."""

from typing import Any

import pytest
from chat_stub import chat_stub

from agents.asking import (
    ask,
    calling,
    chat,
    openai,
    result,
    user,
)
from ludus.agents.agent import FinishReason, Reply
from ludus.agents.openai import OpenAIAgent
from ludus.agents.prices import PriceTable, Rate
from ludus.data.episode import Usage
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject


async def replied(message: Any, *asked: Message, **more: Any) -> Reply:
    """What becomes of this message of a server's."""
    with chat_stub(script=[chat(message, **more)]) as stub:
        async with openai(stub) as agent:
            return await ask(agent, *asked)


def made(name: str = "f", arguments: Any = "{}", **more: Any) -> JsonObject:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("words", "words"),
        (None, ""),
        ([{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}], "two parts"),
        ([{"type": "image"}, "odd", {"text": None}], ""),
    ],
)
async def test_content_is_read_in_every_form(content: Any, text: str) -> None:
    assert (await replied({"content": content})).message.content == text


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_what_was_thought_is_kept_apart(name: str) -> None:
    reply = await replied({"content": "said <think>", name: "thought"})
    assert (reply.message.reasoning_content, reply.message.content) == ("thought", "said <think>")


@pytest.mark.parametrize(
    ("content", "thought", "said"),
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
async def test_tags_around_a_thought_are_taken_off(
    content: str, thought: str | None, said: str
) -> None:
    message = (await replied({"content": content})).message
    assert (message.reasoning_content, message.content) == (thought, said)


async def test_a_servers_own_call_ids_are_kept_where_they_are_unique() -> None:
    reply = await replied({"tool_calls": [made(id="x"), made(id="y")]})
    assert [call.id for call in reply.message.tool_calls or ()] == ["x", "y"]


async def test_call_ids_that_are_missing_or_used_are_made_up_the_same_way_every_time() -> None:
    asked = (user("a"), calling("{}", identity="old"), result("b", identity="old"))
    calls = [made(id=""), made(), made(id="x"), made(id="x"), made(id="old"), made(id=7)]
    first = await replied({"tool_calls": calls}, *asked)
    again = await replied({"tool_calls": calls}, *asked)
    ids = [call.id for call in first.message.tool_calls or ()]
    assert ids == ["call_3_0", "call_3_1", "x", "call_3_3", "call_3_4", "call_3_5"]
    assert again.message == first.message


async def test_a_made_up_call_id_is_never_one_that_the_server_uses() -> None:
    reply = await replied({"tool_calls": [made(id="call_1_1"), made()]})
    assert [call.id for call in reply.message.tool_calls or ()] == ["call_1_1", "call_1_1_"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": ', '{"a": '),
        ({"a": "ä"}, '{"a": "ä"}'),
        (None, "{}"),
        ([1], "[1]"),
    ],
)
async def test_arguments_are_kept_as_the_model_wrote_them(given: Any, kept: str) -> None:
    reply = await replied({"tool_calls": [made(arguments=given)]}, finish="tool_calls")
    assert [call.function.arguments for call in reply.message.tool_calls or ()] == [kept]


async def test_a_call_of_the_older_kind_is_read() -> None:
    reply = await replied({"function_call": {"name": "f", "arguments": "{}"}})
    (call,) = reply.message.tool_calls or ()
    assert (call.id, call.function.name) == ("call_1_0", "f")


async def test_calls_without_anything_in_them_are_left_for_the_tools_to_refuse() -> None:
    reply = await replied({"tool_calls": ["odd", {"function": None}, {"id": "x"}]})
    assert [call.function.name for call in reply.message.tool_calls or ()] == ["", "", ""]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", FinishReason.STOP),
        ("tool_calls", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.REFUSED),
        (None, FinishReason.STOP),
    ],
)
async def test_the_way_a_reply_ended_is_told(reason: Any, finish: FinishReason) -> None:
    assert (await replied({"content": "x"}, finish=reason)).finish_reason is finish


async def test_a_refusal_is_the_message_and_the_finish() -> None:
    reply = await replied({"content": None, "refusal": "I will not."})
    assert (reply.message.content, reply.finish_reason) == ("I will not.", FinishReason.REFUSED)


# Usage


async def test_usage_is_read_with_its_details() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 15},
    }
    assert (await replied({"content": "x"}, usage=usage)).usage == Usage(
        prompt_tokens=100, completion_tokens=20, cached_tokens=60, reasoning_tokens=15
    )


@pytest.mark.parametrize(
    "usage", [None, [], {"prompt_tokens": None, "prompt_tokens_details": None}, {"cost": "free"}]
)
async def test_usage_that_is_missing_is_zero(usage: Any) -> None:
    assert (await replied({"content": "x"}, usage=usage)).usage == Usage()


async def test_a_gateways_own_word_on_the_cost_holds_where_no_price_is_known() -> None:
    usage = {"prompt_tokens": 1_000_000, "cost": 0.25}
    assert (await replied({"content": "x"}, usage=usage)).usage.cost == 0.25
    with chat_stub(script=[chat({"content": "x"}, usage=usage)]) as stub:
        async with openai(stub, prices=PriceTable({"m": Rate(input=3, output=0)})) as agent:
            assert agent.has_price
            assert (await ask(agent)).usage.cost == pytest.approx(3.0)


async def test_a_model_of_openais_own_has_its_listed_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
    with chat_stub(script=[chat({"content": "x"}, usage=usage)]) as stub:
        monkeypatch.setattr(OpenAIAgent, "default_base_url", stub.url)
        async with OpenAIAgent("gpt-4o-mini", key="abcd") as agent:
            assert (await ask(agent)).usage.cost == pytest.approx(0.15)
