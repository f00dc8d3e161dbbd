"""Requests to OpenAI's chat completions API and to compatible servers."""

from typing import Any

import pytest
from chat_stub import chat_stub

from agents.stub_agents import (
    ANSWER,
    PIXEL,
    ask,
    call_message,
    chat_response,
    error_response,
    openai_agent,
    text_and_image,
    tool_message,
    user_message,
)
from ludus.agents.agent import EpisodeContext, FinishReason
from ludus.agents.openai import OpenAIAgent
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, RequestRefused


async def sent_body(
    *messages: Message, max_tokens: int | None = None, **options: Any
) -> JsonObject:
    """The body of the request that the server gets."""
    with chat_stub() as stub:
        async with openai_agent(stub, **options) as agent:
            await ask(agent, *messages, max_tokens=max_tokens)
        return stub.bodies[0]


async def test_an_episode_is_played_over_the_api() -> None:
    with chat_stub() as stub:
        async with openai_agent(stub) as agent:
            player = await agent.begin(EpisodeContext("here", (ANSWER,)))
            question = user_message(
                "State the final answer to the following problem: 23 + 55 - 7 ="
            )
            reply = await player.act([question])
            await player.close()
        assert reply.message.tool_calls is not None
        (call,) = reply.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("answer", '{"answer": "71"}')
        assert reply.finish_reason is FinishReason.STOP
        assert reply.usage.prompt_tokens > 10 and reply.usage.completion_tokens > 10
        assert list(stub.paths) == ["/v1/chat/completions"]


async def test_a_request_holds_only_options_that_were_set() -> None:
    body = await sent_body(Message(role="system", content="Play."), user_message("Hello"))
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Play."},
            {"role": "user", "content": "Hello"},
        ],
        "tools": [ANSWER.to_openai()],
        "tool_choice": "auto",
    }


async def test_temperature_and_extra_fields_are_sent() -> None:
    body = await sent_body(temperature=0.0, extra={"top_p": 0.5, "tool_choice": "required"})
    assert (body["temperature"], body["top_p"], body["tool_choice"]) == (0.0, 0.5, "required")


async def test_chat_template_kwargs_are_sent_and_described() -> None:
    kwargs = {"enable_thinking": False}
    body = await sent_body(chat_template_kwargs=kwargs, extra={"top_k": 3})
    assert (body["chat_template_kwargs"], body["top_k"]) == (kwargs, 3)
    endpoint: dict[str, Any] = {"endpoint": "http://127.0.0.1:9", "key": "k"}
    agent = OpenAIAgent("m", chat_template_kwargs=kwargs, **endpoint)
    assert agent.describe()["chat_template_kwargs"] == kwargs
    twice = {"chat_template_kwargs": {"enable_thinking": True}}
    with pytest.raises(ConfigError, match="chat_template_kwargs"):
        OpenAIAgent("m", chat_template_kwargs=kwargs, extra=twice, **endpoint)


async def test_an_extra_field_overrides_an_option() -> None:
    assert (await sent_body(temperature=0.0, extra={"temperature": 0.7}))["temperature"] == 0.7


async def test_without_tools_none_are_sent() -> None:
    with chat_stub() as stub:
        async with openai_agent(stub) as agent:
            player = await agent.begin(EpisodeContext("here", ()))
            reply = await player.act([user_message("Hello")])
        assert "tools" not in stub.bodies[0]
        assert reply.message.content.startswith("I was told")  # type: ignore[union-attr]


@pytest.mark.parametrize("field", ["model", "messages", "tools", "stream"])
def test_a_reserved_extra_field_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"'{field}'"):
        OpenAIAgent("m", endpoint="http://localhost", extra={field: 1})


@pytest.mark.parametrize(
    "options",
    [{"extra": {"x": object()}}, {"extra": {"x": float("nan")}}, {"temperature": float("nan")},
     {"temperature": -1.0}],
)  # fmt: skip
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        OpenAIAgent("m", endpoint="http://localhost", **options)


def test_describe_holds_only_options_that_were_set() -> None:
    plain = OpenAIAgent("gpt-4o-mini", key="abcd")
    assert plain.describe() == {"provider": "openai", "model": "gpt-4o-mini"}
    assert plain.has_price
    full = OpenAIAgent("m", endpoint="http://h:1/", temperature=0.5, extra={"top_p": 0.9})
    assert full.describe() == {
        "provider": "openai-compatible",
        "model": "m",
        "endpoint": "http://h:1/v1",
        "temperature": 0.5,
        "extra": {"top_p": 0.9},
    }
    assert not full.has_price


def test_openai_without_an_endpoint_needs_a_key() -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        OpenAIAgent("gpt-4o-mini")


# Limits


async def test_an_endpoint_gets_the_limit_as_max_tokens() -> None:
    body = await sent_body(max_tokens=100)
    assert body["max_tokens"] == 100 and "max_completion_tokens" not in body


async def test_openai_gets_the_limit_as_max_completion_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with chat_stub() as stub:
        monkeypatch.setattr(OpenAIAgent, "default_base_url", stub.url)
        async with OpenAIAgent("m", key="abcd") as agent:
            await ask(agent, max_tokens=100)
        assert stub.bodies[0]["max_completion_tokens"] == 100
        assert "max_tokens" not in stub.bodies[0]
        assert stub.headers[0]["authorization"] == "Bearer abcd"


async def test_the_other_limit_field_is_used_once_the_first_was_refused() -> None:
    unknown = error_response(
        400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'."
    )
    with chat_stub(script=[unknown]) as stub:
        async with openai_agent(stub) as agent:
            await ask(agent, max_tokens=100)
            await ask(agent, max_tokens=100)
        names = [sorted(name for name in body if name.startswith("max_")) for body in stub.bodies]
        assert names == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]


async def test_a_limit_refused_under_both_names_is_an_error() -> None:
    large = error_response(400, "max_tokens is too large")
    with chat_stub(script=[large, large]) as stub:
        async with openai_agent(stub) as agent:
            with pytest.raises(RequestRefused, match="too large"):
                await ask(agent, max_tokens=10**9)
            await ask(agent, max_tokens=100)
        assert stub.bodies[-1]["max_tokens"] == 100


async def test_an_unrelated_refusal_is_not_retried_with_another_limit_field() -> None:
    with chat_stub(script=[error_response(400, "tools.0 is wrong")]) as stub:
        async with openai_agent(stub) as agent:
            with pytest.raises(RequestRefused, match=r"tools\.0 is wrong"):
                await ask(agent, max_tokens=100)
        assert len(stub.bodies) == 1


async def test_a_limit_that_does_not_fit_beside_the_prompt_is_omitted() -> None:
    full = error_response(
        400, "This model's maximum context length is 100 tokens; max_tokens is 90."
    )
    with chat_stub(script=[full, chat_response({"content": "fits"}), full, full]) as stub:
        async with openai_agent(stub) as agent:
            fits = await ask(agent, max_tokens=90)
            full_anyway = await ask(agent, max_tokens=90)
        assert (fits.message.content, fits.finish_reason) == ("fits", FinishReason.STOP)
        assert full_anyway.finish_reason is FinishReason.LENGTH
        assert ["max_tokens" in body for body in stub.bodies] == [True, False, True, False]


# Messages sent


async def test_reasoning_is_not_sent_back() -> None:
    reply = Message(role="assistant", content="Hm.", reasoning_content="secretly")
    body = await sent_body(user_message("a"), reply, user_message("b"))
    assert body["messages"][1] == {"role": "assistant", "content": "Hm."}


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"answer": "4"}', '{"answer": "4"}'),
        ('{"answer": ', "{}"),
        ("", "{}"),
        ("[1]", "{}"),
        ('"text"', "{}"),
    ],
)
async def test_invalid_arguments_are_sent_as_an_empty_object(arguments: str, sent: str) -> None:
    body = await sent_body(user_message("a"), call_message(arguments), tool_message("Error: no."))
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "answer", "arguments": sent}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Error: no."},
    ]


async def test_an_invalid_tool_name_is_sanitized() -> None:
    body = await sent_body(
        user_message("a"), call_message("{}", name="functions.answer"), tool_message("Error: no.")
    )
    (call,) = body["messages"][1]["tool_calls"]
    assert call["function"]["name"] == "functions_answer"


async def test_images_of_tool_results_follow_the_last_result_of_the_turn() -> None:
    one, two = (
        tool_message(text_and_image("First"), call_id="c1"),
        tool_message(text_and_image("Second"), call_id="c2"),
    )
    body = await sent_body(
        user_message("a"),
        call_message("{}"),
        one,
        two,
        tool_message("Third", call_id="c3"),
        user_message("b"),
    )
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    assert body["messages"][2:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "First\n[image]"},
        {"role": "tool", "tool_call_id": "c2", "content": "Second\n[image]"},
        {"role": "tool", "tool_call_id": "c3", "content": "Third"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What c1 shows:"},
                image,
                {"type": "text", "text": "What c2 shows:"},
                image,
            ],
        },
        {"role": "user", "content": "b"},
    ]


async def test_images_of_the_last_turn_and_of_users_are_sent() -> None:
    looking = Message(role="user", content=text_and_image("Look."))
    body = await sent_body(looking, call_message("{}"), tool_message(text_and_image("Seen")))
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    assert body["messages"][0]["content"] == [{"type": "text", "text": "Look."}, image]
    assert body["messages"][-1]["content"] == [{"type": "text", "text": "What c1 shows:"}, image]


async def test_a_lone_surrogate_is_sent_as_a_question_mark() -> None:
    body = await sent_body(user_message("half \ud83d a smile"))
    assert body["messages"][0]["content"] == "half ? a smile"
