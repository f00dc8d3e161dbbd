"""API keys appear in request headers, and nowhere else."""

import json
import traceback
from typing import Any

import pytest
from chat_stub import Said, chat_stub

from agents.stub_agents import (
    SECRET,
    anthropic_agent,
    ask,
    chat_response,
    error_response,
    openai_agent,
)
from ludus.agents.api_keys import ApiKey
from ludus.agents.openai import OpenAIAgent
from ludus.agents.provider_errors import ProviderErrors, TransientFault
from ludus.errors import AgentError, ModelBusy


def full_text(error: BaseException) -> str:
    """All that a traceback or a log could show of the error."""
    return f"{error!r} {error} {error.args} " + "".join(traceback.format_exception(error))


@pytest.mark.parametrize("build_agent", [openai_agent, anthropic_agent])
@pytest.mark.parametrize(
    "answer",
    [
        error_response(401, f"Incorrect API key provided: {SECRET}."),
        error_response(404, f"{SECRET} has no such model"),
        error_response(400, f"bad header {SECRET}"),
        error_response(500, f"crashed on {SECRET}"),
        error_response(429, "x" * 270 + SECRET),
        Said(body=f"<html>{SECRET}</html>".encode()),
        Said(400, f"{SECRET} in plain text".encode()),
        Said(307, json.dumps(SECRET).encode()),
    ],
)
async def test_no_error_holds_a_key_that_a_server_echoes(build_agent: Any, answer: Said) -> None:
    with chat_stub(script=[answer]) as stub:
        async with build_agent(stub, key=SECRET, max_retries=0) as agent:
            with pytest.raises(AgentError) as caught:
                await ask(agent)
        text = full_text(caught.value)
        assert SECRET not in text
        assert SECRET[:8] not in text, "not even half of it"
        assert SECRET in str(stub.headers[0]), "it was sent"


async def test_a_refused_key_is_named_by_its_variable() -> None:
    with chat_stub(key="another") as stub:
        async with openai_agent(stub, key=ApiKey(SECRET, "MY_KEY")) as agent:
            for request in (agent.prepare, lambda: ask(agent)):
                with pytest.raises(AgentError, match="MY_KEY") as caught:
                    await request()
                assert SECRET not in full_text(caught.value)
                assert "Incorrect API key provided: ***" in str(caught.value)


async def test_a_reply_is_scrubbed_of_keys_but_not_of_placeholders() -> None:
    echoes = chat_response({"content": f"The box is EMPTY, {SECRET}."})
    with chat_stub(script=[echoes, echoes]) as stub:
        async with openai_agent(stub, key=SECRET) as one, openai_agent(stub, key="EMPTY") as two:
            assert (await ask(one)).message.content == "The box is EMPTY, ***."
            assert (await ask(two)).message.content == f"The box is EMPTY, {SECRET}."


async def test_the_description_of_an_agent_holds_no_key() -> None:
    agent = OpenAIAgent(
        "m", endpoint="http://localhost", key=SECRET, extra={"user": f"me:{SECRET}"}
    )
    assert agent.describe()["extra"] == {"user": "me:***"}
    assert SECRET not in repr(agent) + str(agent.describe()) + repr(agent.client)


async def test_a_proxys_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_stub(script=[407]) as stub:
        proxy = stub.url.replace("http://", "http://me:hunter2@").removesuffix("/v1")
        monkeypatch.setenv("http_proxy", proxy)
        async with OpenAIAgent("m", endpoint="http://model.example", max_retries=0) as agent:
            with pytest.raises(AgentError) as caught:
                await ask(agent)
        assert "hunter2" not in full_text(caught.value)
        assert "proxy-authorization" in stub.headers[0]


def test_a_key_is_scrubbed_before_a_message_is_cut() -> None:
    errors = ProviderErrors("m", "http://host", ApiKey("hunter2!"))
    for length in range(285, 301):
        fault = TransientFault(ModelBusy, "429", "x" * length + "hunter2!")
        assert "hu" not in str(errors.retries_exhausted(fault, 1))


def test_credentials_in_urls_are_scrubbed() -> None:
    agent = OpenAIAgent("m", endpoint="http://localhost")
    assert agent.client.scrub("at http://me:pw@proxy:1/x") == "at http://***@proxy:1/x"
