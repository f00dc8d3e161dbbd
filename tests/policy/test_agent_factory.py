"""Who plays, by the name of a provider; options that it can make nothing of are caught."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.policy.agent import PolicyAgent
from ludus.policy.agent_factory import AgentConfig, agent_from_config


@pytest.mark.parametrize("provider", ["oracle", "random", "human"])
def test_agents_without_a_model_are_built_by_provider(provider: str) -> None:
    assert agent_from_config(AgentConfig(provider=provider)).provider == provider


def test_the_default_provider_is_the_oracle_or_openai_with_an_endpoint() -> None:
    assert agent_from_config(AgentConfig()).provider == "oracle"
    agent = agent_from_config(AgentConfig(llm_endpoint="http://127.0.0.1:9", model="m"))
    assert agent.describe()["provider"] == "openai-compatible"


def test_the_endpoint_of_openai_is_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def endpoint(**options: Any) -> Any:
        config = AgentConfig(provider="openai", model="m", **options)
        return agent_from_config(config).describe().get("endpoint")

    monkeypatch.setenv("OPENAI_API_KEY", "sk-nobody")
    for url, expected in [
        ("http://127.0.0.1:9/v1/", "http://127.0.0.1:9/v1"),
        ("https://api.openai.com/v1", None),
        ("", None),
    ]:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        assert endpoint() == expected
        assert endpoint(llm_endpoint="http://127.0.0.1:7") == "http://127.0.0.1:7/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost")
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL"):
        endpoint()


def test_a_local_model_gets_its_options_and_is_not_loaded() -> None:
    agent = agent_from_config(
        AgentConfig(
            provider="hf",
            model="nobody/has-this",
            temperature=0.7,
            extra={"top_k": 20},
            dtype="float32",
            device="cpu",
            concurrency=12,
        )
    )
    assert isinstance(agent, PolicyAgent) and agent.concurrency_limit == 12
    assert agent.describe() == {
        "provider": "hf",
        "model": "nobody/has-this",
        "temperature": 0.7,
        "top_k": 20,
        "dtype": "float32",
    }


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"provider": "hff"}, ["'hff'", "'hf'"]),
        ({"provider": "hf"}, ["`model`", "smollm2"]),
        ({"provider": "hf", "model": "m", "llm_endpoint": "http://x"}, ["`llm_endpoint`", "'hf'"]),
        ({"provider": "hf", "model": "m", "prices": Path("p")}, ["`prices`", "'hf'"]),
        ({"provider": "openai", "model": "m", "device": "cpu"}, ["`device`", "'openai'"]),
        ({"provider": "anthropic", "model": "m", "dtype": "bf16"}, ["`provider` hf"]),
        ({"device": "cuda"}, ["`device` needs a `provider`", "`provider` hf"]),
        ({"model": "gpt-5-mini"}, ["`model` needs a `provider`", "openai"]),
        ({"provider": "random", "temperature": 0.0}, ["`temperature`", "'random'"]),
    ],
)
def test_unsupported_options_are_rejected(options: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        agent_from_config(AgentConfig(**options))
    assert all(part in str(caught.value) for part in parts)


THINKING_OFF = {"enable_thinking": False}


def test_template_kwargs_are_passed_to_providers_that_render_templates() -> None:
    for more in ({"provider": "hf"}, {"llm_endpoint": "http://127.0.0.1:9"}):
        agent = agent_from_config(
            AgentConfig(model="nobody/has-this", chat_template_kwargs=THINKING_OFF, **more)  # type: ignore[arg-type]
        )
        assert agent.describe()["chat_template_kwargs"] == THINKING_OFF


@pytest.mark.parametrize("provider", ["oracle", "openai", "anthropic"])
def test_template_kwargs_are_rejected_by_other_providers(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nobody")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-nobody")
    model = None if provider == "oracle" else "m"
    with pytest.raises(ConfigError, match="`chat_template_kwargs`") as caught:
        agent_from_config(
            AgentConfig(provider=provider, model=model, chat_template_kwargs=THINKING_OFF)
        )
    assert "\n" not in str(caught.value)


async def test_the_error_of_an_unusable_oracle_names_the_other_providers() -> None:
    with pytest.raises(ConfigError, match="environment") as caught:
        await agent_from_config(AgentConfig()).prepare({"http://127.0.0.1:9": ()})
    others = {"openai", "anthropic", "hf", "random", "human"}
    assert others <= {*re.findall(r"\w+", str(caught.value))}
