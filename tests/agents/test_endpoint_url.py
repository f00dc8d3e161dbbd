"""Validation of endpoint URLs, and proxies."""

import pytest
from chat_stub import chat_stub

from agents.stub_agents import ask, chat_response
from ludus.agents.openai import OpenAIAgent
from ludus.agents.provider import base_url, endpoint_proxy
from ludus.errors import ConfigError


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1"),
        ("http://localhost:8000/", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1"),
        (" https://openrouter.ai/api/v1 ", "https://openrouter.ai/api/v1"),
        ("https://host/openai/deployments/x", "https://host/openai/deployments/x"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_an_endpoint_without_a_path_gets_v1(endpoint: str, url: str) -> None:
    assert base_url(endpoint) == url


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://me:hunter2@host/v1",
        "http://hunter2@host",
        "me:hunter2@host",
        "http://host/v1?key=hunter2",
        "http://host/v1#hunter2",
        "http://host:hunter2@x:99999999",
    ],
)
def test_a_url_that_may_hold_a_secret_is_refused_and_not_shown(endpoint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        base_url(endpoint)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "endpoint", ["localhost:8000", "ftp://host", "http://", "", "http://ho st", "http://host:port"]
)
def test_an_invalid_url_is_refused_with_an_example(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="http://localhost:8000/v1"):
        base_url(endpoint)


def test_a_proxy_is_used_for_other_hosts_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "proxy:3128")
    monkeypatch.setenv("https_proxy", "http://me:pw@secure:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert endpoint_proxy("http://model.example/v1") == "http://proxy:3128"
    assert endpoint_proxy("https://model.example/v1") == "http://me:pw@secure:3128"
    assert endpoint_proxy("http://inside.example/v1") is None
    for host in ("localhost", "a.localhost", "127.0.0.1", "127.8.8.8", "[::1]", "0.0.0.0"):
        assert endpoint_proxy(f"http://{host}:8000/v1") is None


async def test_requests_go_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_stub(script=[chat_response({"content": "by proxy"})]) as stub:
        monkeypatch.setenv("http_proxy", stub.url.removesuffix("/v1"))
        async with OpenAIAgent("m", endpoint="http://model.example", key="abcd") as agent:
            reply = await ask(agent)
        assert reply.message.content == "by proxy"
        assert stub.headers[0]["host"] == "model.example"
        assert list(stub.paths) == ["/v1/chat/completions"]
