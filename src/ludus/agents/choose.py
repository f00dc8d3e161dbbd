"""An agent by the name of its provider, as a command line gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ludus.agents.agent import Agent
from ludus.errors import BadSetting, did_you_mean


@dataclass(frozen=True)
class Choice:
    """Who is to play, and how."""

    provider: str | None = None
    model: str | None = None
    endpoint: str | None = None
    temperature: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the request, such as top_p."""
    concurrency: int = 64
    call_timeout: float = 300.0
    retries: int = 8
    cache: Path | None = None
    prices: Path | None = None


def choose(choice: Choice) -> Agent:
    """The agent; without a provider the oracle, or the model behind an endpoint."""
    provider = choice.provider or ("openai" if choice.endpoint else "oracle")
    if provider not in _MAKERS:
        known = ", ".join(_MAKERS)
        hint = did_you_mean(provider, _MAKERS, f"There are: {known}.")
        raise BadSetting(f"No provider is named {provider!r}. {hint}")
    if provider in ("openai", "anthropic"):
        if not choice.model:
            raise BadSetting(
                f"--provider {provider} needs a --model, such as {_EXAMPLES[provider]}."
            )
    elif unused := _unused(choice):
        raise BadSetting(f"{unused} means nothing to {provider!r}; add --provider openai.")
    return _MAKERS[provider](choice)


def _unused(choice: Choice) -> str | None:
    """An option that only a model behind an API can make something of."""
    given = {
        "--model": choice.model,
        "--llm-endpoint": choice.endpoint,
        "--temperature": choice.temperature is not None,
        "--extra": choice.extra,
        "--cache": choice.cache,
        "--prices": choice.prices,
    }
    return next((option for option, value in given.items() if value), None)


def _oracle(choice: Choice) -> Agent:
    from ludus.agents.oracle import OracleAgent

    return OracleAgent()


def _random(choice: Choice) -> Agent:
    from ludus.agents.arbitrary import RandomAgent

    return RandomAgent()


def _human(choice: Choice) -> Agent:
    from ludus.agents.human import HumanAgent

    return HumanAgent()


def _openai(choice: Choice) -> Agent:
    from ludus.agents.openai import OpenAIAgent

    return OpenAIAgent(choice.model or "", **_remote(choice))


def _anthropic(choice: Choice) -> Agent:
    from ludus.agents.anthropic import AnthropicAgent

    return AnthropicAgent(choice.model or "", **_remote(choice))


def _remote(choice: Choice) -> dict[str, Any]:
    from ludus.agents.prices import Prices

    return {
        "endpoint": choice.endpoint,
        "temperature": choice.temperature,
        "extra": choice.extra,
        "concurrency": choice.concurrency,
        "call_timeout": choice.call_timeout,
        "retries": choice.retries,
        "cache": choice.cache,
        "prices": Prices.load(choice.prices),
    }


_MAKERS: Mapping[str, Callable[[Choice], Agent]] = {
    "oracle": _oracle,
    "openai": _openai,
    "anthropic": _anthropic,
    "random": _random,
    "human": _human,
}
_EXAMPLES = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-4-5"}
