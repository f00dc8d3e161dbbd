"""What it takes to get an answer: against a real server that fails in every way."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest
from chat_stub import Said, chat_stub, sensible
from world import until

from agents.asking import QUICK, ask, chat, nobody, openai, refusing, user
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

FINE = chat({"content": "fine"})


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
async def test_a_passing_fault_is_tried_again(status: int) -> None:
    with chat_stub(script=[status, status, FINE]) as stub:
        async with openai(stub) as agent:
            reply = await ask(agent)
            assert reply.message.content == "fine"
            assert agent.faults == {str(status): 2}


async def test_a_cut_connection_is_tried_again_and_is_no_pushback() -> None:
    with chat_stub(script=["cut", "cut", FINE]) as stub:
        async with openai(stub, concurrency=8) as agent:
            assert (await ask(agent)).message.content == "fine"
            assert agent.faults == {"connection": 2}
            assert agent.concurrency_limit == 8


async def test_a_server_that_hangs_is_asked_again_after_the_deadline() -> None:
    with chat_stub(script=["hang", FINE]) as stub:
        async with openai(stub, call_timeout=0.1, concurrency=8) as agent:
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
async def test_a_reply_that_cannot_be_read_is_asked_for_again(unreadable: Said) -> None:
    with chat_stub(script=[unreadable, FINE]) as stub:
        async with openai(stub) as agent:
            assert (await ask(agent)).message.content == "fine"
            assert agent.faults == {"unreadable": 1}


@pytest.mark.parametrize(
    ("step", "error", "words"),
    [
        (429, ModelBusy, "it answered 429 (Told to answer 429.)"),
        (500, ModelBusy, "it answered 500 (Told to answer 500.)"),
        (409, ModelBusy, "it answered 409 (Told to answer 409.)"),
        ("cut", ModelUnreachable, "the connection failed"),
        ("hang", ModelTimeout, "no reply within 0.1 s"),
        (Said(body=b"<html>"), BadReply, "not a JSON object: '<html>'"),
        (Said(body={"choices": []}), BadReply, "the reply holds no message"),
    ],
)
async def test_after_the_last_try_it_is_an_error(
    step: Said | int | str, error: type[AgentError], words: str
) -> None:
    with chat_stub(script=[step] * 3) as stub:
        async with openai(stub, retries=2, call_timeout=0.1) as agent:
            with pytest.raises(AgentError) as caught:
                await ask(agent)
        line = str(caught.value)
        assert type(caught.value) is error
        assert f"m at {stub.url} was asked 3 times, at last: " in line and words in line
        assert "\n" not in line
        assert len(stub.arrivals) == 3


async def test_with_no_retries_a_call_is_tried_once() -> None:
    with chat_stub(script=[500]) as stub:
        async with openai(stub, retries=0) as agent:
            with pytest.raises(ModelBusy, match="was asked once: it answered 500"):
                await ask(agent)
            assert agent.faults == {}


async def test_nobody_at_the_address_is_unreachable() -> None:
    url = nobody()
    async with OpenAIAgent("m", endpoint=url, retries=1, backoff=QUICK) as agent:
        with pytest.raises(ModelUnreachable, match="was asked 2 times, at last: the connection"):
            await ask(agent)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refusing(401, "No such key."), "does not take requests without a key: No such key."),
        (refusing(403, "Not here."), "does not take requests without a key: Not here."),
        (refusing(404, "Not found."), "There is no model 'm' at http"),
        (refusing(429, "Pay.", code="insufficient_quota"), "nothing left to spend at http"),
        (refusing(402, "Pay."), "nothing left to spend at http"),
        (Said(307, b"", {"location": "http://else"}), "sends requests elsewhere"),
    ],
)
async def test_what_no_repetition_mends_is_refused_at_once(answer: Said, words: str) -> None:
    with chat_stub(script=[answer]) as stub:
        async with openai(stub) as agent:
            with pytest.raises(ProviderRefuses) as caught:
                await ask(agent)
        assert words in str(caught.value) and "\n" not in str(caught.value)
        assert len(stub.arrivals) == 1


async def test_a_refused_request_tells_the_servers_own_words_shortened() -> None:
    long = "tools.0 is wrong\n" + "x" * 1000
    with chat_stub(script=[refusing(400, long)]) as stub:
        async with openai(stub) as agent:
            with pytest.raises(RequestRefused) as caught:
                await ask(agent)
        line = str(caught.value)
        assert f"m at {stub.url} refuses this request: tools.0 is wrong xxx" in line
        assert line.endswith("...") and len(line) < 400
        assert len(stub.arrivals) == 1


async def test_a_full_context_and_a_filter_are_replies_and_no_errors() -> None:
    full = refusing(400, "x", code="context_length_exceeded")
    filtered = refusing(400, "x", code="content_filter")
    with chat_stub(script=[full, filtered]) as stub:
        async with openai(stub) as agent:
            first, second = await ask(agent), await ask(agent)
    assert (first.finish_reason, first.message.content) == (FinishReason.LENGTH, "")
    assert (second.finish_reason, second.message.content) == (FinishReason.REFUSED, "")


async def test_an_error_within_a_200_is_taken_by_its_code() -> None:
    busy = Said(body={"error": {"code": 429, "message": "upstream is busy"}})
    with chat_stub(script=[busy, FINE]) as stub:
        async with openai(stub, concurrency=8) as agent:
            assert (await ask(agent)).message.content == "fine"
            assert agent.faults == {"429": 1}
            assert agent.concurrency_limit == 4


async def test_the_wait_that_a_server_asks_one_call_for_holds_for_all() -> None:
    slow_down = refusing(429, "Slow down.", retry_after="0.3")
    with chat_stub(script=[slow_down]) as stub:
        async with openai(stub) as agent, asyncio.TaskGroup() as group:
            group.create_task(ask(agent))
            await until(lambda: agent.concurrency_limit != 64)
            for number in range(5):
                group.create_task(ask(agent, user(f"{number} + 1 =")))
        first, *others = stub.arrivals
        assert len(others) == 6
        assert min(others) - first >= 0.3


async def test_a_wait_in_milliseconds_is_honoured() -> None:
    with chat_stub(script=[refusing(503, "x", retry_after_ms="200")]) as stub:
        async with openai(stub) as agent:
            await ask(agent)
        first, second = stub.arrivals
        assert 0.2 <= second - first < 5.0


async def test_a_wait_of_more_than_ten_minutes_is_not_waited_for() -> None:
    with chat_stub(script=[refusing(429, "x", retry_after="3600")]) as stub:
        async with openai(stub) as agent:
            with pytest.raises(ModelBusy, match="asks to wait 3600 s, and more than 600 s"):
                await ask(agent)
            began = monotonic()
            await ask(agent)
            assert monotonic() - began < 5.0


async def test_the_level_falls_with_pushback_and_rises_with_success() -> None:
    with chat_stub(script=[429, 500]) as stub:
        async with openai(stub, concurrency=8) as agent:
            await ask(agent)
            assert agent.concurrency_limit == 2
            for _ in range(5):
                await ask(agent)
            assert agent.concurrency_limit == 4


async def test_no_more_calls_are_under_way_than_allowed() -> None:
    with chat_stub(latency=0.02) as stub:
        async with openai(stub, concurrency=3) as agent, asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(ask(agent, user(f"{number} + 1 =")))
        assert stub.peak == 3


async def test_a_call_that_is_cancelled_gives_its_slot_back() -> None:
    with chat_stub(script=["hang"]) as stub:
        async with openai(stub, concurrency=1) as agent:
            task = asyncio.create_task(ask(agent))
            await until(lambda: stub.counts["hang"] == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await asyncio.wait_for(ask(agent), 5)).message.tool_calls


async def test_where_a_third_of_the_requests_fail_every_reply_is_right() -> None:
    with chat_stub(fail=0.3, seed=7) as stub:
        async with openai(stub, concurrency=32, call_timeout=0.5, retries=40) as agent:
            questions = [user(f"State: {number} + {number * 7} - 3 =") for number in range(150)]
            replies = await asyncio.gather(*(ask(agent, question) for question in questions))
            for question, reply in zip(questions, replies, strict=True):
                asked = {"messages": [question.model_dump()], "tools": [{"name": "answer"}]}
                (call,) = sensible(asked)["tool_calls"]
                assert reply.message.tool_calls is not None
                assert reply.message.tool_calls[0].model_dump() == call
            assert set(agent.faults) == {"429", "500", "connection", "timeout"}
        assert stub.counts["200"] >= 150
        assert all(stub.counts[fault] > 0 for fault in ("429", "500", "cut", "hang"))


def test_waits_double_up_to_the_cap_and_are_spread_out() -> None:
    random.seed(3)
    backoff = Backoff(base=0.5, cap=30)
    for retry, longest in [(0, 0.5), (1, 1.0), (4, 8.0), (6, 30.0), (5000, 30.0)]:
        waits = [backoff.delay_s(retry) for _ in range(300)]
        assert 0.9 * longest < max(waits) <= longest
        assert min(waits) < 0.1 * longest


@pytest.mark.parametrize("settings", [{"call_timeout": 0}, {"retries": -1}, {"concurrency": 0}])
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        OpenAIAgent("m", endpoint="http://localhost", **settings)


@pytest.mark.parametrize("answer", ["reply", 404, 405, 429, 500, Said(302, b"")])
async def test_any_answer_to_the_question_for_models_will_do(answer: Said | int | str) -> None:
    with chat_stub(models=answer) as stub:
        async with openai(stub) as agent:
            await agent.prepare(["here"])
        assert sum(stub.counts.values()) == 1


async def test_no_answer_in_time_to_the_question_for_models_will_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provider, "_PROBE_TIMEOUT_S", 0.05)
    with chat_stub(models="hang") as stub:
        async with openai(stub) as agent:
            await agent.prepare()
        assert stub.counts == {"hang": 1}


async def test_a_wrong_key_is_found_out_before_anything_is_played() -> None:
    with chat_stub(key="the right one") as stub:
        async with openai(stub, key="wrong-one") as agent:
            with pytest.raises(ProviderRefuses, match="the key from the key argument: "):
                await agent.prepare()


async def test_nobody_at_the_address_is_found_out_before_anything_is_played() -> None:
    url = nobody()
    async with OpenAIAgent("m", endpoint=url, backoff=QUICK) as agent:
        with pytest.raises(ModelUnreachable) as caught:
            await agent.prepare()
    line = str(caught.value)
    assert line.startswith(f"Nobody answers at {url}/v1 (") and "\n" not in line


async def test_a_name_that_does_not_resolve_is_found_out_before_anything_is_played() -> None:
    async with OpenAIAgent("m", endpoint="http://no.such.host.invalid", backoff=QUICK) as agent:
        with pytest.raises(ModelUnreachable, match="Nobody answers at"):
            await agent.prepare()


@asynccontextmanager
async def hanging_up(times: int) -> AsyncIterator[str]:
    """A server that hangs up without a word so many times, and then answers."""
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


async def test_a_server_that_hangs_up_is_asked_again_whether_it_is_there() -> None:
    async with hanging_up(3) as url, OpenAIAgent("m", endpoint=url, backoff=QUICK) as agent:
        await agent.prepare()
    async with hanging_up(100) as url, OpenAIAgent("m", endpoint=url, backoff=QUICK) as agent:
        with pytest.raises(ModelUnreachable, match="Nobody answers at"):
            await agent.prepare()


async def test_an_agent_may_be_closed_twice_and_used_again() -> None:
    with chat_stub() as stub:
        agent = openai(stub)
        await agent.close()
        first = await ask(agent)
        await agent.close()
        await agent.close()
        assert (await ask(agent)).message == first.message
        await agent.close()
