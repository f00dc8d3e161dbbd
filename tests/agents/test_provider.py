"""Retries, throttling and errors of the API client, against a real server that fails on request."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chat_stub import Said, chat_stub, sensible
from world import until

from agents.stub_agents import (
    FAST_BACKOFF,
    ask,
    chat_response,
    error_response,
    openai_agent,
    unused_url,
    user_message,
)
from ludus.agents import provider
from ludus.agents.agent import FinishReason
from ludus.agents.openai import OpenAIAgent
from ludus.agents.provider import Backoff
from ludus.errors import (
    AgentError,
    BadReply,
    ConfigError,
    ModelBusy,
    ModelTimeout,
    ModelUnreachable,
    ProviderRefuses,
    RequestRefused,
)

FINE = chat_response({"content": "fine"})


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
async def test_a_transient_fault_is_retried(status: int) -> None:
    with chat_stub(script=[status, status, FINE]) as stub:
        async with openai_agent(stub) as agent:
            reply = await ask(agent)
            assert reply.message.content == "fine"
            assert agent.faults == {str(status): 2}


async def test_a_cut_connection_is_retried_and_is_no_overload() -> None:
    with chat_stub(script=["cut", "cut", FINE]) as stub:
        async with openai_agent(stub, concurrency=8) as agent:
            assert (await ask(agent)).message.content == "fine"
            assert agent.faults == {"connection": 2}
            assert agent.concurrency_limit == 8


async def test_a_call_is_retried_after_call_timeout() -> None:
    with chat_stub(script=["hang", FINE]) as stub:
        async with openai_agent(stub, call_timeout=0.5, concurrency=8) as agent:
            assert (await ask(agent)).message.content == "fine"
            assert agent.faults == {"timeout": 1}
            assert agent.concurrency_limit == 8


@pytest.mark.parametrize(
    "unreadable",
    [
        Said(body=b"<html>busy</html>"),
        Said(body=b""),
        Said(body=b"[]"),
        Said(body={"choices": []}),
        Said(body={"choices": [{"finish_reason": "stop"}]}),
        Said(body={"choices": [{"message": {"content": "ha"}, "finish_reason": "error"}]}),
    ],
)
async def test_an_unreadable_reply_is_retried(unreadable: Said) -> None:
    with chat_stub(script=[unreadable, FINE]) as stub:
        async with openai_agent(stub) as agent:
            assert (await ask(agent)).message.content == "fine"
            assert agent.faults == {"unreadable": 1}


@pytest.mark.parametrize(
    ("step", "error", "detail"),
    [
        (429, ModelBusy, "429"),
        (500, ModelBusy, "500"),
        (409, ModelBusy, "409"),
        ("cut", ModelUnreachable, "connection"),
        ("hang", ModelTimeout, "0.1 s"),
        (Said(body=b"<html>"), BadReply, "<html>"),
        (Said(body={"choices": []}), BadReply, "no message"),
    ],
)
async def test_after_the_last_attempt_it_is_an_error(
    step: Said | int | str, error: type[AgentError], detail: str
) -> None:
    with chat_stub(script=[step] * 3) as stub:
        patience = 0.1 if step == "hang" else 60.0
        async with openai_agent(stub, max_retries=2, call_timeout=patience) as agent:
            with pytest.raises(AgentError) as caught:
                await ask(agent)
        message = str(caught.value)
        assert type(caught.value) is error
        assert f"m at {stub.url}" in message and "3" in message and detail in message
        assert "\n" not in message
        assert len(stub.arrivals) == 3


async def test_without_retries_there_is_one_attempt() -> None:
    with chat_stub(script=[500]) as stub:
        async with openai_agent(stub, max_retries=0) as agent:
            with pytest.raises(ModelBusy, match="500"):
                await ask(agent)
            assert agent.faults == {}


async def test_a_url_without_a_server_is_unreachable() -> None:
    url = unused_url()
    async with OpenAIAgent("m", endpoint=url, max_retries=1, backoff=FAST_BACKOFF) as agent:
        with pytest.raises(ModelUnreachable, match="2 attempts"):
            await ask(agent)


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (error_response(401, "No such key."), "No such key."),
        (error_response(403, "Not here."), "Not here."),
        (error_response(404, "Not found."), "'m'"),
        (error_response(429, "Pay.", code="insufficient_quota"), "quota"),
        (error_response(402, "Pay."), "quota"),
        (Said(307, b"", {"location": "http://else"}), "redirects"),
    ],
)
async def test_a_refusal_is_not_retried(answer: Said, detail: str) -> None:
    with chat_stub(script=[answer]) as stub:
        async with openai_agent(stub) as agent:
            with pytest.raises(ProviderRefuses) as caught:
                await ask(agent)
        assert detail in str(caught.value) and "\n" not in str(caught.value)
        assert len(stub.arrivals) == 1


async def test_a_refused_request_shows_the_servers_message_shortened() -> None:
    long = "tools.0 is wrong\n" + "x" * 1000
    with chat_stub(script=[error_response(400, long)]) as stub:
        async with openai_agent(stub) as agent:
            with pytest.raises(RequestRefused) as caught:
                await ask(agent)
        message = str(caught.value)
        assert f"m at {stub.url}" in message and "tools.0 is wrong xxx" in message
        assert message.endswith("...") and len(message) < 400
        assert len(stub.arrivals) == 1


async def test_a_full_context_and_a_content_filter_are_replies() -> None:
    full = error_response(400, "x", code="context_length_exceeded")
    filtered = error_response(400, "x", code="content_filter")
    with chat_stub(script=[full, filtered]) as stub:
        async with openai_agent(stub) as agent:
            first, second = await ask(agent), await ask(agent)
    assert (first.finish_reason, first.message.content) == (FinishReason.LENGTH, "")
    assert (second.finish_reason, second.message.content) == (FinishReason.REFUSED, "")


async def test_an_error_under_a_200_is_retried_by_its_code() -> None:
    busy = Said(body={"error": {"code": 429, "message": "upstream is busy"}})
    with chat_stub(script=[busy, FINE]) as stub:
        async with openai_agent(stub, concurrency=8) as agent:
            assert (await ask(agent)).message.content == "fine"
            assert agent.faults == {"429": 1}
            assert agent.concurrency_limit == 4


async def test_retry_after_pauses_all_calls() -> None:
    slow_down = error_response(429, "Slow down.", retry_after="0.3")
    with chat_stub(script=[slow_down]) as stub:
        async with openai_agent(stub) as agent, asyncio.TaskGroup() as group:
            group.create_task(ask(agent))
            await until(lambda: agent.concurrency_limit != 64)
            for number in range(5):
                group.create_task(ask(agent, user_message(f"{number} + 1 =")))
        first, *others = stub.arrivals
        assert len(others) == 6
        assert min(others) - first >= 0.3


async def test_retry_after_in_milliseconds_is_honoured() -> None:
    with chat_stub(script=[error_response(503, "x", retry_after_ms="200")]) as stub:
        async with openai_agent(stub) as agent:
            await ask(agent)
        first, second = stub.arrivals
        assert second - first >= 0.2


async def test_a_retry_after_of_more_than_ten_minutes_is_an_error() -> None:
    with chat_stub(script=[error_response(429, "x", retry_after="3600")]) as stub:
        async with openai_agent(stub) as agent:
            with pytest.raises(ModelBusy, match="3600 s"):
                await ask(agent)
            assert agent.retry_after_s == 0.0
            await ask(agent)


async def test_the_limit_falls_with_overload_and_rises_with_success() -> None:
    with chat_stub(script=[429, 500]) as stub:
        async with openai_agent(stub, concurrency=8) as agent:
            await ask(agent)
            assert agent.concurrency_limit == 2
            for _ in range(5):
                await ask(agent)
            assert agent.concurrency_limit == 4


async def test_concurrency_limits_the_calls_in_flight() -> None:
    with chat_stub(latency=0.02) as stub:
        async with openai_agent(stub, concurrency=3) as agent, asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(ask(agent, user_message(f"{number} + 1 =")))
        assert stub.peak == 3


async def test_a_cancelled_call_releases_its_slot() -> None:
    with chat_stub(script=["hang"]) as stub:
        async with openai_agent(stub, concurrency=1) as agent:
            task = asyncio.create_task(ask(agent))
            await until(lambda: stub.counts["hang"] == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await asyncio.wait_for(ask(agent), 60)).message.tool_calls


async def test_every_reply_is_right_although_a_third_of_the_requests_fail() -> None:
    with chat_stub(fail=0.3, seed=7) as stub:
        async with openai_agent(stub, concurrency=32, call_timeout=0.5, max_retries=40) as agent:
            questions = [
                user_message(f"State: {number} + {number * 7} - 3 =") for number in range(150)
            ]
            replies = await asyncio.gather(*(ask(agent, question) for question in questions))
            for question, reply in zip(questions, replies, strict=True):
                request = {"messages": [question.model_dump()], "tools": [{"name": "answer"}]}
                (call,) = sensible(request)["tool_calls"]
                assert reply.message.tool_calls is not None
                assert reply.message.tool_calls[0].model_dump() == call
            assert set(agent.faults) == {"429", "500", "connection", "timeout"}
        assert stub.counts["200"] >= 150
        assert all(stub.counts[fault] > 0 for fault in ("429", "500", "cut", "hang"))


def test_backoff_doubles_up_to_the_cap_with_full_jitter() -> None:
    random.seed(3)
    backoff = Backoff(base=0.5, cap=30)
    for retry, longest in [(0, 0.5), (1, 1.0), (4, 8.0), (6, 30.0), (5000, 30.0)]:
        waits = [backoff.delay_s(retry) for _ in range(300)]
        assert 0.9 * longest < max(waits) <= longest
        assert min(waits) < 0.1 * longest


@pytest.mark.parametrize("options", [{"call_timeout": 0}, {"max_retries": -1}, {"concurrency": 0}])
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        OpenAIAgent("m", endpoint="http://localhost", **options)


@pytest.mark.parametrize("answer", ["reply", 404, 405, 429, 500, Said(302, b"")])
async def test_prepare_accepts_any_response_but_a_refused_key(answer: Said | int | str) -> None:
    with chat_stub(models=answer) as stub:
        async with openai_agent(stub) as agent:
            await agent.prepare({"here": ()})
        assert sum(stub.counts.values()) == 1


async def test_prepare_accepts_a_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provider, "_PROBE_TIMEOUT_S", 0.05)
    with chat_stub(models="hang") as stub:
        async with openai_agent(stub) as agent:
            await agent.prepare()
        assert stub.counts == {"hang": 1}


async def test_prepare_refuses_a_wrong_key() -> None:
    with chat_stub(key="the right one") as stub:
        async with openai_agent(stub, key="wrong-one") as agent:
            with pytest.raises(ProviderRefuses, match="the key argument"):
                await agent.prepare()


async def test_prepare_notices_that_there_is_no_server() -> None:
    url = unused_url()
    async with OpenAIAgent("m", endpoint=url, backoff=FAST_BACKOFF) as agent:
        with pytest.raises(ModelUnreachable) as caught:
            await agent.prepare()
    assert f"{url}/v1" in str(caught.value) and "\n" not in str(caught.value)


async def test_prepare_notices_a_host_that_does_not_resolve() -> None:
    async with OpenAIAgent(
        "m", endpoint="http://no.such.host.invalid", backoff=FAST_BACKOFF
    ) as agent:
        with pytest.raises(ModelUnreachable, match="http"):
            await agent.prepare()


@asynccontextmanager
async def flaky_server(times: int) -> AsyncIterator[str]:
    """A server that closes the first connections without a response."""
    left = times

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        left -= 1
        await reader.readuntil(b"\r\n\r\n")
        if left < 0:
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_prepare_retries_when_the_server_closes_the_connection() -> None:
    async with (
        flaky_server(3) as url,
        OpenAIAgent("m", endpoint=url, backoff=FAST_BACKOFF) as agent,
    ):
        await agent.prepare()
    async with (
        flaky_server(100) as url,
        OpenAIAgent("m", endpoint=url, backoff=FAST_BACKOFF) as agent,
    ):
        with pytest.raises(ModelUnreachable, match="http"):
            await agent.prepare()


async def test_an_agent_can_be_closed_twice_and_used_again() -> None:
    with chat_stub() as stub:
        agent = openai_agent(stub)
        await agent.close()
        first = await ask(agent)
        await agent.close()
        await agent.close()
        assert (await ask(agent)).message == first.message
        await agent.close()
