"""Requests to and replies from Anthropic's Messages API."""

from typing import Any

import pytest
from chat_stub import Said, chat_stub

from agents.stub_agents import (
    ANSWER,
    anthropic_agent,
    ask,
    call_message,
    error_response,
    text_and_image,
    tool_message,
    user_message,
)
from ludus.agents.agent import EpisodeContext, FinishReason, Reply
from ludus.agents.anthropic import AnthropicAgent
from ludus.data.episode import Usage
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, ProviderRefuses

THINKING = {"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmVk"}
REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}


def tool_use(call_id: str = "toolu_1", **arguments: Any) -> JsonObject:
    return {"type": "tool_use", "id": call_id, "name": "answer", "input": arguments}


def text_block(text: str) -> JsonObject:
    return {"type": "text", "text": text}


async def parse_content(content: Any, **fields: Any) -> Reply:
    """The reply that is parsed from this content."""
    with chat_stub(script=[Said(body={"content": content, **fields})]) as stub:
        async with anthropic_agent(stub) as agent:
            return await ask(agent)


async def sent_body(*messages: Message, **options: Any) -> JsonObject:
    with chat_stub() as stub:
        async with anthropic_agent(stub, **options) as agent:
            await ask(agent, *messages)
        return stub.bodies[0]


async def test_an_episode_is_played_over_the_api() -> None:
    with chat_stub() as stub:
        async with anthropic_agent(stub, key="abcd") as agent:
            reply = await ask(agent, user_message("State the final answer: 23 + 55 - 7 ="))
        assert reply.message.tool_calls is not None
        (call,) = reply.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("answer", '{"answer": "71"}')
        assert reply.finish_reason is FinishReason.STOP and reply.usage.prompt_tokens > 10
        assert list(stub.paths) == ["/v1/messages"]
        assert stub.headers[0]["x-api-key"] == "abcd"
        assert stub.headers[0]["anthropic-version"] == "2023-06-01"


async def test_a_request_holds_only_options_that_were_set() -> None:
    one, two = (Message(role="system", content=words) for words in ("Play.", "Well."))
    assert await sent_body(
        one, user_message("Hello"), two, temperature=0.5, extra={"top_k": 3}
    ) == {
        "model": "m",
        "max_tokens": 4096,
        "temperature": 0.5,
        "top_k": 3,
        "system": "Play.\n\nWell.",
        "messages": [{"role": "user", "content": [text_block("Hello")]}],
        "tools": [
            {
                "name": "answer",
                "description": "Submit the final answer.",
                "input_schema": ANSWER.input_schema,
            }
        ],
    }


async def test_max_tokens_is_sent() -> None:
    with chat_stub() as stub:
        async with anthropic_agent(stub) as agent:
            await ask(agent, max_tokens=77)
        assert stub.bodies[0]["max_tokens"] == 77


async def test_tool_results_and_following_user_messages_are_merged() -> None:
    body = await sent_body(
        user_message("a"),
        call_message('{"answer": "4"}', call_id="t1"),
        tool_message("Wrong.", call_id="t1"),
        tool_message("Error: there is no such tool.", call_id="t2"),
        user_message("b"),
        user_message("c"),
    )
    assert body["messages"] == [
        {"role": "user", "content": [text_block("a")]},
        {"role": "assistant", "content": [tool_use("t1", answer="4")]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [text_block("Wrong.")]},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [text_block("Error: there is no such tool.")],
                    "is_error": True,
                },
                text_block("b"),
                text_block("c"),
            ],
        },
    ]


async def test_images_are_sent_in_user_messages_and_in_tool_results() -> None:
    body = await sent_body(
        Message(role="user", content=text_and_image("Look.")),
        call_message("{}"),
        tool_message(text_and_image("Seen.")),
    )
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
    }
    assert body["messages"][0]["content"] == [text_block("Look."), image]
    assert body["messages"][2]["content"][0]["content"] == [text_block("Seen."), image]


async def test_an_image_url_is_sent_as_a_url() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "https://host/a.png"}}]
    body = await sent_body(Message.model_validate({"role": "user", "content": parts}))
    source = {"type": "url", "url": "https://host/a.png"}
    assert body["messages"][0]["content"] == [{"type": "image", "source": source}]


async def test_blank_text_is_not_sent() -> None:
    body = await sent_body(
        user_message(" "),
        call_message("{"),
        tool_message(""),
        Message(role="assistant"),
        user_message("b"),
    )
    assert body["messages"] == [
        {"role": "user", "content": [text_block("(nothing)")]},
        {"role": "assistant", "content": [tool_use("c1")]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": []},
                text_block("b"),
            ],
        },
    ]


async def test_invalid_ids_and_names_are_sanitized_in_call_and_result() -> None:
    body = await sent_body(
        user_message("a"),
        call_message("{}", call_id="c:1", name="a.b"),
        tool_message("b", call_id="c:1"),
    )
    call, tool_result = body["messages"][1]["content"][0], body["messages"][2]["content"][0]
    assert (call["id"], call["name"], tool_result["tool_use_id"]) == ("c_1", "a_b", "c_1")


async def test_thinking_is_sent_back_unchanged() -> None:
    blocks = [THINKING, REDACTED, text_block("I say 4."), tool_use(answer="4")]

    def reply(request: JsonObject) -> JsonObject:
        return {"content": blocks if len(request["messages"]) == 1 else "Done."}

    with chat_stub(reply) as stub:
        thinking = {"type": "enabled", "budget_tokens": 2000}
        async with anthropic_agent(stub, extra={"thinking": thinking}) as agent:
            player = await agent.begin(EpisodeContext("here", (ANSWER,)))
            messages = [Message(role="system", content="Play."), user_message("2 + 2")]
            first = (await player.act(messages)).message
            stored = Message.model_validate(first.model_dump())
            messages += [stored, tool_message("Right.", call_id="toolu_1")]
            second = (await player.act(messages)).message
        assert first.reasoning_content == "Let me see."
        assert first.content == "I say 4."
        assert [call.id for call in first.tool_calls or ()] == ["toolu_1"]
        assert second.content == "Done."
        assert stub.bodies[1]["thinking"] == thinking
        assert stub.bodies[1]["messages"][1] == {"role": "assistant", "content": blocks}


async def test_an_edited_reply_is_sent_without_the_recorded_blocks() -> None:
    with chat_stub(lambda request: {"content": [THINKING, text_block("Yes.")]}) as stub:
        async with anthropic_agent(stub) as agent:
            player = await agent.begin(EpisodeContext("here", ()))
            await player.act([user_message("a")])
            other = Message(role="assistant", content="No.")
            await player.act([user_message("a"), other, user_message("b")])
        assert stub.bodies[1]["messages"][1] == {
            "role": "assistant",
            "content": [text_block("No.")],
        }


async def test_merging_messages_does_not_change_the_recorded_blocks() -> None:
    with chat_stub(lambda request: {"content": "Yes."}) as stub:
        async with anthropic_agent(stub) as agent:
            player = await agent.begin(EpisodeContext("here", ()))
            reply = (await player.act([user_message("a")])).message
            more = Message(role="assistant", content="And more.")
            for _ in range(2):
                await player.act([user_message("a"), reply, more, user_message("b")])
        for body in list(stub.bodies)[1:]:
            assert body["messages"][1]["content"] == [text_block("Yes."), text_block("And more.")]


async def test_an_empty_reply_is_not_sent_back() -> None:
    with chat_stub(script=[Said(body={"content": [text_block("")]})]) as stub:
        async with anthropic_agent(stub) as agent:
            player = await agent.begin(EpisodeContext("here", ()))
            empty = (await player.act([user_message("a")])).message
            await player.act([user_message("a"), empty, user_message("b")])
        assert empty == Message(role="assistant")
        assert stub.bodies[1]["messages"] == [
            {"role": "user", "content": [text_block("a"), text_block("b")]}
        ]


async def test_new_call_ids_are_the_same_in_the_message_and_in_its_blocks() -> None:
    content = [
        tool_use(""),
        tool_use("toolu_1"),
        tool_use("toolu_1"),
        {**tool_use("x"), "input": "odd"},
    ]
    with chat_stub(script=[Said(body={"content": content})]) as stub:
        async with anthropic_agent(stub) as agent:
            player = await agent.begin(EpisodeContext("here", (ANSWER,)))
            first = (await player.act([user_message("a")])).message
            await player.act([user_message("a"), first])
        ids = ["call_1_0", "toolu_1", "call_1_2", "x"]
        assert [call.id for call in first.tool_calls or ()] == ids
        back = stub.bodies[1]["messages"][1]["content"]
        assert [block["id"] for block in back] == ids
        assert [block["input"] for block in back] == [{}, {}, {}, {}]


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason"),
    [
        ("end_turn", FinishReason.STOP),
        ("tool_use", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("pause_turn", FinishReason.STOP),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("refusal", FinishReason.REFUSED),
    ],
)
async def test_the_stop_reason_is_mapped(stop_reason: str, finish_reason: FinishReason) -> None:
    assert (
        await parse_content([text_block("x")], stop_reason=stop_reason)
    ).finish_reason is finish_reason


async def test_cached_tokens_are_part_of_the_prompt() -> None:
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 200,
        "cache_read_input_tokens": 3000,
        "output_tokens": 7,
    }
    assert (await parse_content([text_block("x")], usage=usage)).usage == Usage(
        prompt_tokens=3210, completion_tokens=7, cached_tokens=3000
    )
    assert (await parse_content([text_block("x")])).usage == Usage()


async def test_a_reply_without_content_is_retried() -> None:
    broken = [Said(body={"content": None}), Said(body={"content": ["odd"]})]
    with chat_stub(lambda request: {"content": "fine"}, script=broken) as stub:
        async with anthropic_agent(stub) as agent:
            assert (await ask(agent)).message.content == "fine"
            assert agent.faults == {"unreadable": 2}


async def test_an_overloaded_server_is_retried() -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with chat_stub(script=[Said(529, overloaded)]) as stub:
        async with anthropic_agent(stub, concurrency=8) as agent:
            assert (await ask(agent)).message.tool_calls
            assert agent.faults == {"529": 1} and agent.concurrency_limit == 4


async def test_a_full_context_and_a_content_filter_are_replies() -> None:
    full = error_response(400, "prompt is too long: 210000 tokens > 200000 maximum")
    blocked = error_response(400, "Output blocked by content filtering policy")
    with chat_stub(script=[full, blocked]) as stub:
        async with anthropic_agent(stub) as agent:
            assert (await ask(agent)).finish_reason is FinishReason.LENGTH
            assert (await ask(agent)).finish_reason is FinishReason.REFUSED


async def test_a_wrong_key_is_refused() -> None:
    with chat_stub(key="right") as stub:
        async with anthropic_agent(stub, key="wrong") as agent:
            with pytest.raises(ProviderRefuses):
                await agent.prepare()
            with pytest.raises(ProviderRefuses):
                await ask(agent)


def test_describe_and_price() -> None:
    agent = AnthropicAgent("claude-3-5-haiku-20241022", key="abcd", temperature=1.0)
    assert agent.describe() == {
        "provider": "anthropic",
        "model": "claude-3-5-haiku-20241022",
        "temperature": 1.0,
    }
    assert agent.has_price
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        AnthropicAgent("claude-3-5-haiku-20241022")
