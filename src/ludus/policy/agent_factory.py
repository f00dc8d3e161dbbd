"""Agents by name: from a command line's options, or from a text such as `openai:gpt-5-mini`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ludus.agents.agent import Agent
from ludus.errors import ConfigError, closest_match, did_you_mean
from ludus.policy import smollm2
from ludus.policy.model_ref import check_name, find_local_model


@dataclass(frozen=True)
class AgentConfig:
    """Who is to play, and how."""

    provider: str | None = None
    model: str | None = None
    llm_endpoint: str | None = None
    temperature: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the request, such as top_p."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, such as enable_thinking."""
    concurrency: int = 64
    """The most replies that are asked for at once."""
    call_timeout: float = 300.0
    max_retries: int = 8
    cache: Path | None = None
    prices: Path | None = None
    device: str | None = None
    dtype: str | None = None


def agent_from_config(config: AgentConfig) -> Agent:
    """The agent; without a provider the oracle, or the model behind an endpoint."""
    provider = config.provider or ("openai" if config.llm_endpoint else "oracle")
    if provider not in _BUILDERS:
        known = ", ".join(_BUILDERS)
        hint = did_you_mean(provider, _BUILDERS, f"There are: {known}.")
        raise ConfigError(f"No provider is named {provider!r}. {hint}")
    if unused := _find_unsupported_option(config, provider):
        trouble = (
            f"{unused} needs a --provider"
            if config.provider is None
            else f"{unused} means nothing to {provider!r}"
        )
        raise ConfigError(f"{trouble}; {_suggest_provider(unused, config)}.")
    if config.chat_template_kwargs:
        _check_template_kwargs_supported(provider, config.llm_endpoint)
    if provider in _EXAMPLE_MODELS and not config.model:
        raise ConfigError(
            f"--provider {provider} needs a --model, such as {_EXAMPLE_MODELS[provider]}."
        )
    return _BUILDERS[provider](config)


def parse_agent(spec: str) -> tuple[str, str | None]:
    """Provider and model of `oracle`, `openai:MODEL`, `hf:MODEL`, a model's folder or `smollm2`."""
    provider, colon, model = spec.partition(":")
    if provider in _EXAMPLE_MODELS and model:
        return provider, _expand_home(model) if provider == "hf" else model
    if provider in _EXAMPLE_MODELS:
        raise ConfigError(f"{spec!r} names no model. Write {provider}:MODEL.")
    if provider in _BUILDERS and not colon:
        return provider, None
    if provider in _BUILDERS:
        raise ConfigError(f"{spec!r}: {provider!r} plays without a model. Write {provider}.")
    if spec == smollm2.NAME or (spec and Path(_expand_home(spec)).exists()):
        return "hf", _expand_home(spec)
    if not colon and "/" in spec:
        check_name(spec)
        raise ConfigError(f"{spec!r} may be a model on the Hub. Write hf:{spec}.")
    known = (*_BUILDERS, smollm2.NAME)
    forms = "oracle, random, openai:MODEL, anthropic:MODEL, hf:MODEL, a model's folder or smollm2"
    raise ConfigError(f"Unknown agent {spec!r}. {did_you_mean(provider, known, f'Write {forms}.')}")


def agent_from_spec(spec: str, **options: Any) -> Agent:
    """The agent that a short text names, such as "openai:gpt-5-mini" or "hf:models/wordle".

    `options` are fields of `Choice`: temperature, endpoint, extra, concurrency, device, dtype, ...
    """
    known = {each.name for each in fields(AgentConfig)} - {"provider", "model"}
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known, f"There are: {', '.join(sorted(known))}.")
            raise ConfigError(f"An agent has no option {name!r}. {hint}")
    provider, model = parse_agent(spec)
    return agent_from_config(AgentConfig(provider=provider, model=model, **options))


def _expand_home(model: str) -> str:
    """The path without `~`: behind a colon or an equals sign no shell replaces it."""
    try:
        return str(Path(model).expanduser()) if model.startswith("~") else model
    except RuntimeError:
        raise ConfigError(
            f"{model}: there is no such user here. Write the folder itself."
        ) from None


def _find_unsupported_option(choice: AgentConfig, provider: str) -> str | None:
    """An option that was given and that this provider can make nothing of."""
    given = {
        "--model": choice.model,
        "--llm-endpoint": choice.llm_endpoint,
        "--temperature": choice.temperature is not None,
        "--extra": choice.extra,
        "--cache": choice.cache,
        "--prices": choice.prices,
        "--device": choice.device,
        "--dtype": choice.dtype,
    }
    taken = _OPTIONS_BY_PROVIDER.get(provider, frozenset())
    return next((option for option, value in given.items() if value and option not in taken), None)


def _check_template_kwargs_supported(provider: str, endpoint: str | None) -> None:
    """Refuse template arguments for providers that do not render a chat template."""
    if provider == "hf" or (provider == "openai" and endpoint):
        return
    instead = (
        f"Use --extra '{_THINKING_EXTRAS[provider]}', as its API has it."
        if provider in _THINKING_EXTRAS
        else "Leave it out."
    )
    raise ConfigError(
        f"--thinking, --no-thinking and --chat-template-kwargs are for --provider hf and for "
        f"--llm-endpoint; {provider!r} takes no template arguments. {instead}"
    )


def _suggest_provider(option: str, choice: AgentConfig) -> str:
    """The provider that was probably meant."""
    if option in _LOCAL_OPTIONS or (option == "--model" and _is_local_model(choice.model or "")):
        return "add --provider hf, for a model that runs in this process"
    if option == "--model" and (choice.model or "").startswith("claude"):
        return "add --provider anthropic"
    return "add --provider openai"


def _is_local_model(model: str) -> bool:
    """Whether the name is one of a model that runs here: no API has such names."""
    local = model == smollm2.NAME or find_local_model(model) is not None or "/" in model
    return local or closest_match(model.lower(), [smollm2.NAME]) is not None


def _build_oracle(choice: AgentConfig) -> Agent:
    from ludus.agents.oracle import OracleAgent

    return OracleAgent()


def _build_random(choice: AgentConfig) -> Agent:
    from ludus.agents.random_agent import RandomAgent

    return RandomAgent()


def _build_human(choice: AgentConfig) -> Agent:
    from ludus.agents.human import HumanAgent

    return HumanAgent()


def _build_openai(choice: AgentConfig) -> Agent:
    from ludus.agents.openai import OpenAIAgent

    return OpenAIAgent(
        choice.model or "", chat_template_kwargs=choice.chat_template_kwargs, **_api_options(choice)
    )


def _build_anthropic(choice: AgentConfig) -> Agent:
    from ludus.agents.anthropic import AnthropicAgent

    return AnthropicAgent(choice.model or "", **_api_options(choice))


def _build_hf(choice: AgentConfig) -> Agent:
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


def _api_options(choice: AgentConfig) -> dict[str, Any]:
    from ludus.agents.prices import PriceTable

    return {
        "endpoint": choice.llm_endpoint,
        "temperature": choice.temperature,
        "extra": choice.extra,
        "concurrency": choice.concurrency,
        "call_timeout": choice.call_timeout,
        "retries": choice.max_retries,
        "cache": choice.cache,
        "prices": PriceTable.load(choice.prices),
    }


_BUILDERS: Mapping[str, Callable[[AgentConfig], Agent]] = {
    "oracle": _build_oracle,
    "openai": _build_openai,
    "anthropic": _build_anthropic,
    "hf": _build_hf,
    "random": _build_random,
    "human": _build_human,
}
_EXAMPLE_MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-4-5", "hf": "smollm2"}
"""The providers that need a model, and one of theirs."""
_THINKING_EXTRAS = {
    "openai": '{"reasoning_effort": "low"}',
    "anthropic": '{"thinking": {"type": "enabled", "budget_tokens": 2000}}',
}
"""How much a model thinks, in the words of an API that has no chat template."""
_MODEL_OPTIONS = frozenset({"--model", "--temperature", "--extra"})
_API_OPTIONS = _MODEL_OPTIONS | {"--llm-endpoint", "--cache", "--prices"}
_LOCAL_OPTIONS = frozenset({"--device", "--dtype"})
_OPTIONS_BY_PROVIDER = {
    "openai": _API_OPTIONS,
    "anthropic": _API_OPTIONS,
    "hf": _MODEL_OPTIONS | _LOCAL_OPTIONS,
}
