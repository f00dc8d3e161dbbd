"""A key is in the request's headers, and nowhere else."""

import json
import traceback
from typing import Any

import pytest
from chat_stub import Said, chat_stub

from agents.asking import SECRET, anthropic, ask, chat, openai, refusing
from ludus.agents.api_keys import ApiKey
from ludus.agents.error_messages import ProviderErrors
from ludus.agents.openai import OpenAIAgent
from ludus.agents.response_errors import TransientFault
from ludus.errors import AgentError, ModelBusy


def everything(error: BaseException) -> str:
    """All that a traceback, a log or a report could show of it."""
    return f"{error!r} {error} {error.args} " + "".join(traceback.format_exception(error))


@pytest.mark.parametrize("agent_of", [openai, anthropic])
@pytest.mark.parametrize(
    "answer",
    [
        refusing(401, f"Incorrect API key provided: {SECRET}."),
        refusing(404, f"{SECRET} has no such model"),
        refusing(400, f"bad header {SECRET}"),
        refusing(500, f"crashed on {SECRET}"),
        refusing(429, "x" * 270 + SECRET),
        Said(body=f"<html>{SECRET}</html>".encode()),
        Said(400, f"{SECRET} in plain text".encode()),
        Said(307, json.dumps(SECRET).encode()),
    ],
)
async def test_no_error_holds_a_key_that_a_server_echoes(agent_of: Any, answer: Said) -> None:
    with chat_stub(script=[answer]) as stub:
        async with agent_of(stub, key=SECRET, retries=0) as agent:
            with pytest.raises(AgentError) as caught:
                await ask(agent)
        told = everything(caught.value)
        assert SECRET not in told
        assert SECRET[:8] not in told, "not even half of it"
        assert SECRET in str(stub.headers[0]), "it was sent"


async def test_a_refused_key_is_named_by_its_variable() -> None:
    with chat_stub(key="another") as stub:
        async with openai(stub, key=ApiKey(SECRET, "MY_KEY")) as agent:
            for question in (agent.prepare(), ask(agent)):
                with pytest.raises(AgentError, match="does not take the key from MY_KEY") as caught:
                    await question
                assert SECRET not in everything(caught.value)
                assert "Incorrect API key provided: ***" in str(caught.value)


async def test_a_reply_holds_no_key_but_every_word_that_a_placeholder_may_be() -> None:
    echoes = chat({"content": f"The box is EMPTY, {SECRET}."})
    with chat_stub(script=[echoes, echoes]) as stub:
        async with openai(stub, key=SECRET) as one, openai(stub, key="EMPTY") as two:
            assert (await ask(one)).message.content == "The box is EMPTY, ***."
            assert (await ask(two)).message.content == f"The box is EMPTY, {SECRET}."


async def test_an_agent_shows_no_key_in_what_it_says_of_itself() -> None:
    agent = OpenAIAgent(
        "m", endpoint="http://localhost", key=SECRET, extra={"user": f"me:{SECRET}"}
    )
    assert agent.describe()["extra"] == {"user": "me:***"}
    assert SECRET not in repr(agent) + str(agent.describe()) + repr(agent.client)


async def test_a_proxys_password_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_stub(script=[407]) as stub:
        proxy = stub.url.replace("http://", "http://me:hunter2@").removesuffix("/v1")
        monkeypatch.setenv("http_proxy", proxy)
        async with OpenAIAgent("m", endpoint="http://model.example", retries=0) as agent:
            with pytest.raises(AgentError) as caught:
                await ask(agent)
        assert "hunter2" not in everything(caught.value)
        assert "proxy-authorization" in stub.headers[0]


def test_a_key_is_taken_out_before_a_message_is_cut() -> None:
    complaints = ProviderErrors("m", "http://host", ApiKey("hunter2!"))
    for length in range(285, 301):
        fault = TransientFault(ModelBusy, "429", "x" * length + "hunter2!")
        assert "hu" not in str(complaints.retries_exhausted(fault, 1))


def test_credentials_in_any_address_are_scrubbed() -> None:
    agent = OpenAIAgent("m", endpoint="http://localhost")
    assert agent.client.scrub("at http://me:pw@proxy:1/x") == "at http://***@proxy:1/x"
