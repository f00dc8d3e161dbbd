"""Anthropic's Messages API, there and back."""

from typing import Any

import pytest
from chat_stub import Said, chat_stub

from agents.asking import ANSWER, anthropic, ask, calling, refusing, result, shown, user
from ludus.agents.agent import EpisodeContext, FinishReason, Reply
from ludus.agents.anthropic import AnthropicAgent
from ludus.data.episode import Usage
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, ProviderRefuses

THINKING = {"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmVk"}
REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}


def use(identity: str = "toolu_1", **given: Any) -> JsonObject:
    return {"type": "tool_use", "id": identity, "name": "answer", "input": given}


def text(words: str) -> JsonObject:
    return {"type": "text", "text": words}


async def replied(content: Any, **more: Any) -> Reply:
    """What becomes of this content of a reply."""
    with chat_stub(script=[Said(body={"content": content, **more})]) as stub:
        async with anthropic(stub) as agent:
            return await ask(agent)


async def sent(*messages: Message, **settings: Any) -> JsonObject:
    with chat_stub() as stub:
        async with anthropic(stub, **settings) as agent:
            await ask(agent, *messages)
        return stub.bodies[0]


async def test_an_episode_is_played_over_the_api() -> None:
    with chat_stub() as stub:
        async with anthropic(stub, key="abcd") as agent:
            reply = await ask(agent, user("State the final answer: 23 + 55 - 7 ="))
        assert reply.message.tool_calls is not None
        (call,) = reply.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("answer", '{"answer": "71"}')
        assert reply.finish_reason is FinishReason.STOP and reply.usage.prompt_tokens > 10
        assert list(stub.paths) == ["/v1/messages"]
        assert stub.headers[0]["x-api-key"] == "abcd"
        assert stub.headers[0]["anthropic-version"] == "2023-06-01"


async def test_a_request_holds_what_was_set_and_nothing_else() -> None:
    one, two = (Message(role="system", content=words) for words in ("Play.", "Well."))
    assert await sent(one, user("Hello"), two, temperature=0.5, extra={"top_k": 3}) == {
        "model": "m",
        "max_tokens": 4096,
        "temperature": 0.5,
        "top_k": 3,
        "system": "Play.\n\nWell.",
        "messages": [{"role": "user", "content": [text("Hello")]}],
        "tools": [
            {
                "name": "answer",
                "description": "Submit the final answer.",
                "input_schema": ANSWER.input_schema,
            }
        ],
    }


async def test_the_limit_is_sent() -> None:
    with chat_stub() as stub:
        async with anthropic(stub) as agent:
            await ask(agent, max_tokens=77)
        assert stub.bodies[0]["max_tokens"] == 77


async def test_results_of_a_turn_and_what_the_user_says_then_are_one_message() -> None:
    body = await sent(
        user("a"),
        calling('{"answer": "4"}', identity="t1"),
        result("Wrong.", identity="t1"),
        result("Error: there is no such tool.", identity="t2"),
        user("b"),
        user("c"),
    )
    assert body["messages"] == [
        {"role": "user", "content": [text("a")]},
        {"role": "assistant", "content": [use("t1", answer="4")]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [text("Wrong.")]},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [text("Error: there is no such tool.")],
                    "is_error": True,
                },
                text("b"),
                text("c"),
            ],
        },
    ]


async def test_pictures_stand_in_users_messages_and_in_results() -> None:
    body = await sent(
        Message(role="user", content=shown("Look.")), calling("{}"), result(shown("Seen."))
    )
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
    }
    assert body["messages"][0]["content"] == [text("Look."), picture]
    assert body["messages"][2]["content"][0]["content"] == [text("Seen."), picture]


async def test_a_picture_at_an_address_is_sent_as_one() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "https://host/a.png"}}]
    body = await sent(Message.model_validate({"role": "user", "content": parts}))
    source = {"type": "url", "url": "https://host/a.png"}
    assert body["messages"][0]["content"] == [{"type": "image", "source": source}]


async def test_blank_text_is_never_sent_for_the_api_refuses_it() -> None:
    body = await sent(user(" "), calling("{"), result(""), Message(role="assistant"), user("b"))
    assert body["messages"] == [
        {"role": "user", "content": [text("(nothing)")]},
        {"role": "assistant", "content": [use("c1")]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": []}, text("b")],
        },
    ]


async def test_ids_and_names_that_the_api_refuses_are_changed_in_call_and_result_alike() -> None:
    body = await sent(
        user("a"), calling("{}", identity="c:1", name="a.b"), result("b", identity="c:1")
    )
    called, answered = body["messages"][1]["content"][0], body["messages"][2]["content"][0]
    assert (called["id"], called["name"], answered["tool_use_id"]) == ("c_1", "a_b", "c_1")


async def test_thinking_goes_back_unchanged_in_the_episode_that_it_belongs_to() -> None:
    thought = [THINKING, REDACTED, text("I say 4."), use(answer="4")]

    def reply(request: JsonObject) -> JsonObject:
        return {"content": thought if len(request["messages"]) == 1 else "Done."}

    with chat_stub(reply) as stub:
        thinking = {"type": "enabled", "budget_tokens": 2000}
        async with anthropic(stub, extra={"thinking": thinking}) as agent:
            player = await agent.begin(EpisodeContext("here", (ANSWER,)))
            messages = [Message(role="system", content="Play."), user("2 + 2")]
            first = (await player.act(messages)).message
            stored = Message.model_validate(first.model_dump())
            messages += [stored, result("Right.", identity="toolu_1")]
            second = (await player.act(messages)).message
        assert first.reasoning_content == "Let me see."
        assert first.content == "I say 4."
        assert [call.id for call in first.tool_calls or ()] == ["toolu_1"]
        assert second.content == "Done."
        assert stub.bodies[1]["thinking"] == thinking
        assert stub.bodies[1]["messages"][1] == {"role": "assistant", "content": thought}


async def test_a_message_that_is_not_what_was_replied_is_sent_as_it_stands() -> None:
    with chat_stub(lambda request: {"content": [THINKING, text("Yes.")]}) as stub:
        async with anthropic(stub) as agent:
            player = await agent.begin(EpisodeContext("here", ()))
            await player.act([user("a")])
            other = Message(role="assistant", content="No.")
            await player.act([user("a"), other, user("b")])
        assert stub.bodies[1]["messages"][1] == {"role": "assistant", "content": [text("No.")]}


async def test_what_is_merged_with_a_reply_is_not_remembered_as_part_of_it() -> None:
    with chat_stub(lambda request: {"content": "Yes."}) as stub:
        async with anthropic(stub) as agent:
            player = await agent.begin(EpisodeContext("here", ()))
            reply = (await player.act([user("a")])).message
            more = Message(role="assistant", content="And more.")
            for _ in range(2):
                await player.act([user("a"), reply, more, user("b")])
        for body in list(stub.bodies)[1:]:
            assert body["messages"][1]["content"] == [text("Yes."), text("And more.")]


async def test_a_reply_of_nothing_is_not_sent_back() -> None:
    with chat_stub(script=[Said(body={"content": [text("")]})]) as stub:
        async with anthropic(stub) as agent:
            player = await agent.begin(EpisodeContext("here", ()))
            empty = (await player.act([user("a")])).message
            await player.act([user("a"), empty, user("b")])
        assert empty == Message(role="assistant")
        assert stub.bodies[1]["messages"] == [{"role": "user", "content": [text("a"), text("b")]}]


async def test_calls_without_ids_get_the_same_ones_in_the_message_and_in_what_is_sent_back() -> (
    None
):
    content = [use(""), use("toolu_1"), use("toolu_1"), {**use("x"), "input": "odd"}]
    with chat_stub(script=[Said(body={"content": content})]) as stub:
        async with anthropic(stub) as agent:
            player = await agent.begin(EpisodeContext("here", (ANSWER,)))
            first = (await player.act([user("a")])).message
            await player.act([user("a"), first])
        ids = ["call_1_0", "toolu_1", "call_1_2", "x"]
        assert [call.id for call in first.tool_calls or ()] == ids
        back = stub.bodies[1]["messages"][1]["content"]
        assert [block["id"] for block in back] == ids
        assert [block["input"] for block in back] == [{}, {}, {}, {}]


@pytest.mark.parametrize(
    ("reason", "finish"),
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
async def test_the_way_a_reply_ended_is_told(reason: str, finish: FinishReason) -> None:
    assert (await replied([text("x")], stop_reason=reason)).finish_reason is finish


async def test_tokens_that_went_through_the_providers_cache_are_part_of_the_prompt() -> None:
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 200,
        "cache_read_input_tokens": 3000,
        "output_tokens": 7,
    }
    assert (await replied([text("x")], usage=usage)).usage == Usage(
        prompt_tokens=3210, completion_tokens=7, cached_tokens=3000
    )
    assert (await replied([text("x")])).usage == Usage()


async def test_a_reply_without_content_is_asked_for_again() -> None:
    broken = [Said(body={"content": None}), Said(body={"content": ["odd"]})]
    with chat_stub(lambda request: {"content": "fine"}, script=broken) as stub:
        async with anthropic(stub) as agent:
            assert (await ask(agent)).message.content == "fine"
            assert agent.faults == {"unreadable": 2}


async def test_an_overloaded_server_is_asked_again() -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with chat_stub(script=[Said(529, overloaded)]) as stub:
        async with anthropic(stub, concurrency=8) as agent:
            assert (await ask(agent)).message.tool_calls
            assert agent.faults == {"529": 1} and agent.concurrency_limit == 4


async def test_a_prompt_that_is_too_long_and_a_blocked_output_are_replies() -> None:
    full = refusing(400, "prompt is too long: 210000 tokens > 200000 maximum")
    blocked = refusing(400, "Output blocked by content filtering policy")
    with chat_stub(script=[full, blocked]) as stub:
        async with anthropic(stub) as agent:
            assert (await ask(agent)).finish_reason is FinishReason.LENGTH
            assert (await ask(agent)).finish_reason is FinishReason.REFUSED


async def test_a_wrong_key_is_refused() -> None:
    with chat_stub(key="right") as stub:
        async with anthropic(stub, key="wrong") as agent:
            with pytest.raises(ProviderRefuses):
                await agent.prepare()
            with pytest.raises(ProviderRefuses):
                await ask(agent)


def test_an_agent_describes_itself_and_knows_its_price() -> None:
    agent = AnthropicAgent("claude-3-5-haiku-20241022", key="abcd", temperature=1.0)
    assert agent.describe() == {
        "provider": "anthropic",
        "model": "claude-3-5-haiku-20241022",
        "temperature": 1.0,
    }
    assert agent.has_price
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        AnthropicAgent("claude-3-5-haiku-20241022")
