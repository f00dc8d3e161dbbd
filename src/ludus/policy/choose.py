"""Agents by name: from a command line's options, or from a text such as `openai:gpt-5-mini`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ludus.agents.agent import Agent
from ludus.errors import ConfigError, closest_match, did_you_mean
from ludus.policy import smollm2
from ludus.policy.source import check_name, here


@dataclass(frozen=True)
class Choice:
    """Who is to play, and how."""

    provider: str | None = None
    model: str | None = None
    endpoint: str | None = None
    temperature: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the request, such as top_p."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, such as enable_thinking."""
    concurrency: int = 64
    """The most replies that are asked for at once."""
    call_timeout: float = 300.0
    retries: int = 8
    cache: Path | None = None
    prices: Path | None = None
    device: str | None = None
    dtype: str | None = None


def choose(choice: Choice) -> Agent:
    """The agent; without a provider the oracle, or the model behind an endpoint."""
    provider = choice.provider or ("openai" if choice.endpoint else "oracle")
    if provider not in _MAKERS:
        known = ", ".join(_MAKERS)
        hint = did_you_mean(provider, _MAKERS, f"There are: {known}.")
        raise ConfigError(f"No provider is named {provider!r}. {hint}")
    if unused := _unused(choice, provider):
        trouble = (
            f"{unused} needs a --provider"
            if choice.provider is None
            else f"{unused} means nothing to {provider!r}"
        )
        raise ConfigError(f"{trouble}; {_remedy(unused, choice)}.")
    if choice.chat_template_kwargs:
        _refuse_without_template(provider, choice.endpoint)
    if provider in _EXAMPLES and not choice.model:
        raise ConfigError(f"--provider {provider} needs a --model, such as {_EXAMPLES[provider]}.")
    return _MAKERS[provider](choice)


def parse_agent(spec: str) -> tuple[str, str | None]:
    """Provider and model of `oracle`, `openai:MODEL`, `hf:MODEL`, a model's folder or `smollm2`."""
    provider, colon, model = spec.partition(":")
    if provider in _EXAMPLES and model:
        return provider, _expand_home(model) if provider == "hf" else model
    if provider in _EXAMPLES:
        raise ConfigError(f"{spec!r} names no model. Write {provider}:MODEL.")
    if provider in _MAKERS and not colon:
        return provider, None
    if provider in _MAKERS:
        raise ConfigError(f"{spec!r}: {provider!r} plays without a model. Write {provider}.")
    if spec == smollm2.NAME or (spec and Path(_expand_home(spec)).exists()):
        return "hf", _expand_home(spec)
    if not colon and "/" in spec:
        check_name(spec)
        raise ConfigError(f"{spec!r} may be a model on the Hub. Write hf:{spec}.")
    known = (*_MAKERS, smollm2.NAME)
    forms = "oracle, random, openai:MODEL, anthropic:MODEL, hf:MODEL, a model's folder or smollm2"
    raise ConfigError(f"Unknown agent {spec!r}. {did_you_mean(provider, known, f'Write {forms}.')}")


def agent_of(spec: str, **options: Any) -> Agent:
    """The agent that a short text names, such as "openai:gpt-5-mini" or "hf:models/wordle".

    `options` are fields of `Choice`: temperature, endpoint, extra, concurrency, device, dtype, ...
    """
    known = {each.name for each in fields(Choice)} - {"provider", "model"}
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known, f"There are: {', '.join(sorted(known))}.")
            raise ConfigError(f"An agent has no option {name!r}. {hint}")
    provider, model = parse_agent(spec)
    return choose(Choice(provider=provider, model=model, **options))


def _expand_home(model: str) -> str:
    """The path without `~`: behind a colon or an equals sign no shell replaces it."""
    try:
        return str(Path(model).expanduser()) if model.startswith("~") else model
    except RuntimeError:
        raise ConfigError(
            f"{model}: there is no such user here. Write the folder itself."
        ) from None


def _unused(choice: Choice, provider: str) -> str | None:
    """An option that was given and that this provider can make nothing of."""
    given = {
        "--model": choice.model,
        "--llm-endpoint": choice.endpoint,
        "--temperature": choice.temperature is not None,
        "--extra": choice.extra,
        "--cache": choice.cache,
        "--prices": choice.prices,
        "--device": choice.device,
        "--dtype": choice.dtype,
    }
    taken = _TAKEN.get(provider, frozenset())
    return next((option for option, value in given.items() if value and option not in taken), None)


def _refuse_without_template(provider: str, endpoint: str | None) -> None:
    """Refuse template arguments for providers that do not render a chat template."""
    if provider == "hf" or (provider == "openai" and endpoint):
        return
    instead = (
        f"Use --extra '{_THINKING[provider]}', as its API has it."
        if provider in _THINKING
        else "Leave it out."
    )
    raise ConfigError(
        f"--thinking, --no-thinking and --chat-template-kwargs are for --provider hf and for "
        f"--llm-endpoint; {provider!r} takes no template arguments. {instead}"
    )


def _remedy(option: str, choice: Choice) -> str:
    """The provider that was probably meant."""
    if option in _HERE or (option == "--model" and _is_local(choice.model or "")):
        return "add --provider hf, for a model that runs in this process"
    if option == "--model" and (choice.model or "").startswith("claude"):
        return "add --provider anthropic"
    return "add --provider openai"


def _is_local(model: str) -> bool:
    """Whether the name is one of a model that runs here: no API has such names."""
    local = model == smollm2.NAME or here(model) is not None or "/" in model
    return local or closest_match(model.lower(), [smollm2.NAME]) is not None


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

    return OpenAIAgent(
        choice.model or "", chat_template_kwargs=choice.chat_template_kwargs, **_remote(choice)
    )


def _anthropic(choice: Choice) -> Agent:
    from ludus.agents.anthropic import AnthropicAgent

    return AnthropicAgent(choice.model or "", **_remote(choice))


def _hf(choice: Choice) -> Agent:
    from ludus.policy.agent import PolicyAgent

    return PolicyAgent(
        choice.model or "",
        temperature=choice.temperature,
        extra=choice.extra,
        device=choice.device,
        dtype=choice.dtype,
        chat_template_kwargs=choice.chat_template_kwargs,
        max_batch=choice.concurrency,
    )


def _remote(choice: Choice) -> dict[str, Any]:
    from ludus.agents.prices import PriceTable

    return {
        "endpoint": choice.endpoint,
        "temperature": choice.temperature,
        "extra": choice.extra,
        "concurrency": choice.concurrency,
        "call_timeout": choice.call_timeout,
        "retries": choice.retries,
        "cache": choice.cache,
        "prices": PriceTable.load(choice.prices),
    }


_MAKERS: Mapping[str, Callable[[Choice], Agent]] = {
    "oracle": _oracle,
    "openai": _openai,
    "anthropic": _anthropic,
    "hf": _hf,
    "random": _random,
    "human": _human,
}
_EXAMPLES = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-4-5", "hf": "smollm2"}
"""The providers that need a model, and one of theirs."""
_THINKING = {
    "openai": '{"reasoning_effort": "low"}',
    "anthropic": '{"thinking": {"type": "enabled", "budget_tokens": 2000}}',
}
"""How much a model thinks, in the words of an API that has no chat template."""
_MODELS = frozenset({"--model", "--temperature", "--extra"})
_APIS = _MODELS | {"--llm-endpoint", "--cache", "--prices"}
_HERE = frozenset({"--device", "--dtype"})
_TAKEN = {"openai": _APIS, "anthropic": _APIS, "hf": _MODELS | _HERE}
