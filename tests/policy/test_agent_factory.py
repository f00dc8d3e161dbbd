"""Who plays, by the name of a provider; options that it can make nothing of are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.policy.agent import PolicyAgent
from ludus.policy.agent_factory import AgentConfig, agent_from_config


@pytest.mark.parametrize("provider", ["oracle", "random", "human"])
def test_players_without_a_model_are_chosen_by_name(provider: str) -> None:
    assert agent_from_config(AgentConfig(provider=provider)).provider == provider


def test_without_a_provider_it_is_the_oracle_or_the_model_behind_an_endpoint() -> None:
    assert agent_from_config(AgentConfig()).provider == "oracle"
    asked = agent_from_config(AgentConfig(llm_endpoint="http://127.0.0.1:9", model="m"))
    assert asked.describe()["provider"] == "openai-compatible"


def test_a_local_model_gets_all_its_settings_and_is_not_loaded_yet() -> None:
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
    ("choice", "words"),
    [
        ({"provider": "hff"}, "No provider is named 'hff'. Did you mean 'hf'?"),
        ({"provider": "hf"}, "--provider hf needs a --model, such as smollm2."),
        ({"provider": "hf", "model": "m", "llm_endpoint": "http://x"}, "--llm-endpoint means nothing"),
        ({"provider": "hf", "model": "m", "cache": "c"}, "--cache means nothing to 'hf'"),
        ({"provider": "hf", "model": "m", "prices": "p"}, "--prices means nothing to 'hf'"),
        ({"provider": "openai", "model": "m", "device": "cpu"}, "--device means nothing to"),
        ({"provider": "anthropic", "model": "m", "dtype": "bf16"}, "add --provider hf"),
        ({"device": "cuda"}, "--device needs a --provider; add --provider hf"),
        ({"model": "gpt-5-mini"}, "--model needs a --provider; add --provider openai."),
        ({"provider": "random", "temperature": 0.0}, "--temperature means nothing to 'random'"),
    ],
)
def test_what_a_provider_can_make_nothing_of_is_refused(choice: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        agent_from_config(AgentConfig(**choice))
    assert words in str(refused.value)


OFF = {"enable_thinking": False}


def test_arguments_of_a_chat_template_reach_whoever_renders_one() -> None:
    for more in ({"provider": "hf"}, {"llm_endpoint": "http://127.0.0.1:9"}):
        agent = agent_from_config(
            AgentConfig(model="nobody/has-this", chat_template_kwargs=OFF, **more)  # type: ignore[arg-type]
        )
        assert agent.describe()["chat_template_kwargs"] == OFF


@pytest.mark.parametrize(
    ("provider", "instead"),
    [("oracle", "Leave it out"), ("openai", "reasoning_effort"), ("anthropic", "budget_tokens")],
)
def test_arguments_of_a_chat_template_are_refused_where_there_is_none(
    provider: str, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nobody")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-nobody")
    model = None if provider == "oracle" else "m"
    with pytest.raises(ConfigError, match="--no-thinking") as refused:
        agent_from_config(AgentConfig(provider=provider, model=model, chat_template_kwargs=OFF))
    assert instead in str(refused.value) and "\n" not in str(refused.value)


async def test_where_the_oracle_cannot_play_everybody_else_is_named() -> None:
    with pytest.raises(ConfigError, match=r"does not say which environment") as refused:
        await agent_from_config(AgentConfig()).prepare(["http://127.0.0.1:9"])
    others = {"openai", "anthropic", "hf", "random", "human"}
    assert others <= {*re.findall(r"\w+", str(refused.value))}
