"""Build agents from a config, or from a spec such as `openai:gpt-5-mini`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ludus.agents.agent import Agent
from ludus.agents.api_keys import find_variable
from ludus.agents.provider import base_url
from ludus.data.config import check_field_types
from ludus.errors import ConfigError, did_you_mean
from ludus.options import Option, expand_path, parse_assignments, parse_duration
from ludus.policy import smollm2
from ludus.policy.model_ref import check_model_name, expand_home


@dataclass(frozen=True)
class AgentConfig:
    """Which agent to build, and its options.

    Options that the provider does not support are rejected.
    """

    provider: Annotated[str | None, Option("Agent", hidden=True)] = None
    """Kind of agent, as OpenEnv's command line takes it beside --model."""
    model: Annotated[str | None, Option("Agent", hidden=True)] = None
    """Model of the provider."""
    llm_endpoint: Annotated[str | None, Option("Agent", advanced=True, metavar="URL")] = None
    """OpenAI-compatible server: vLLM, Ollama, llama.cpp."""
    temperature: Annotated[
        float | None, Option("Sampling", default="the model's default; 0 for local models of eval")
    ] = None
    """Sampling temperature."""
    extra: Annotated[
        Mapping[str, Any],
        Option("Sampling", advanced=True, metavar="KEY=VALUE|JSON", combine=parse_assignments),
    ] = field(default_factory=dict)
    """Other fields of each request, such as top_p=0.9."""
    chat_template_kwargs: Annotated[
        Mapping[str, Any],
        Option("Agent", hidden=True, metavar="KEY=VALUE|JSON", combine=parse_assignments),
    ] = field(default_factory=dict)
    """Arguments of the chat template, such as enable_thinking."""
    concurrency: Annotated[int, Option("Limits", advanced=True)] = 64
    """Maximum number of concurrent calls to the model."""
    call_timeout: Annotated[
        float, Option("Limits", hidden=True, metavar="TIME", default="5m", parse=parse_duration)
    ] = 300.0
    """Timeout of one API call."""
    max_retries: Annotated[int, Option("Limits", hidden=True)] = 8
    """Maximum number of retries per API call."""
    prices: Annotated[Path | None, Option("Limits", hidden=True, parse=expand_path)] = None
    """JSON file of prices, in US dollars per million tokens."""
    device: Annotated[str | None, Option("Agent", hidden=True, default="the fastest available")] = (
        None
    )
    """Device of local models: cuda, cuda:1, mps or cpu."""
    dtype: Annotated[str | None, Option("Agent", hidden=True)] = None
    """Dtype of local models: bfloat16, float16 or float32."""

    def __post_init__(self) -> None:
        check_field_types(self)


_BASE_URL_VARIABLE = "OPENAI_BASE_URL"
_PROVIDERS = ("oracle", "openai", "anthropic", "hf", "random", "human")
_EXAMPLE_MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-4-5", "hf": "smollm2"}
"""The providers that need a model, with an example."""
_API_PROVIDERS = ("openai", "anthropic")
OPTION_PROVIDERS = {
    "model": (*_API_PROVIDERS, "hf"),
    "llm_endpoint": _API_PROVIDERS,
    "temperature": (*_API_PROVIDERS, "hf"),
    "extra": (*_API_PROVIDERS, "hf"),
    "prices": _API_PROVIDERS,
    "device": ("hf",),
    "dtype": ("hf",),
}
"""The providers that support an option, if it is not for all."""


def agent_from_config(config: AgentConfig) -> Agent:
    """Build the agent. The default provider is the oracle, or openai if `llm_endpoint` is set."""
    provider = config.provider or ("openai" if config.llm_endpoint else "oracle")
    if provider not in _PROVIDERS:
        hint = did_you_mean(provider, _PROVIDERS, f"Known providers: {', '.join(_PROVIDERS)}.")
        raise ConfigError(f"Unknown `provider` {provider!r}. {hint}")
    url = find_variable(_BASE_URL_VARIABLE)
    if provider == "openai" and not config.llm_endpoint and url is not None:
        from ludus.agents.openai import OpenAIAgent

        try:
            endpoint = base_url(url)
        except ConfigError as error:
            raise ConfigError(f"{_BASE_URL_VARIABLE} is wrong. {error}") from None
        if endpoint != OpenAIAgent.default_base_url:
            config = replace(config, llm_endpoint=endpoint)
    for option, providers in OPTION_PROVIDERS.items():
        if getattr(config, option) not in (None, "", {}) and provider not in providers:
            problem = (
                "needs a `provider`"
                if config.provider is None
                else f"is not supported by provider {provider!r}"
            )
            others = " or ".join(providers)
            raise ConfigError(f"`{option}` {problem}. It is for `provider` {others}.")
    renders_template = provider == "hf" or (provider == "openai" and config.llm_endpoint)
    if config.chat_template_kwargs and not renders_template:
        raise ConfigError(
            "`thinking` and `chat_template_kwargs` are for `provider` hf and for an "
            f"`llm_endpoint`; {provider!r} renders no chat template. Leave them out, or set the "
            "API's own fields in `extra`."
        )
    if provider in _EXAMPLE_MODELS and not config.model:
        example = _EXAMPLE_MODELS[provider]
        raise ConfigError(f"`provider` {provider} needs a `model`, such as {example}.")
    return _build_agent(provider, config)


def _build_agent(provider: str, config: AgentConfig) -> Agent:
    if provider == "oracle":
        from ludus.agents.oracle import OracleAgent

        return OracleAgent()
    if provider == "random":
        from ludus.agents.scripted import RandomAgent

        return RandomAgent()
    if provider == "human":
        from ludus.agents.human import HumanAgent

        return HumanAgent()
    if provider == "hf":
        from ludus.policy.agent import PolicyAgent

        return PolicyAgent(
            config.model or "",
            temperature=config.temperature,
            extra=config.extra,
            device=config.device,
            dtype=config.dtype,
            chat_template_kwargs=config.chat_template_kwargs,
            max_batch=config.concurrency,
        )
    from ludus.agents.anthropic import AnthropicAgent
    from ludus.agents.api_agent import read_prices
    from ludus.agents.openai import OpenAIAgent

    build = (
        partial(OpenAIAgent, chat_template_kwargs=config.chat_template_kwargs)
        if provider == "openai"
        else AnthropicAgent
    )
    return build(
        config.model or "",
        endpoint=config.llm_endpoint,
        temperature=config.temperature,
        extra=config.extra,
        concurrency=config.concurrency,
        call_timeout=config.call_timeout,
        max_retries=config.max_retries,
        prices=read_prices(config.prices) if config.prices else None,
    )


def parse_agent(spec: str) -> tuple[str, str | None]:
    """Split `oracle`, `openai:MODEL`, `hf:MODEL`, a folder or `smollm2` into provider and model."""
    provider, colon, model = spec.partition(":")
    if provider in _EXAMPLE_MODELS:
        if not model:
            raise ConfigError(f"{spec!r} names no model. Write {provider}:MODEL.")
        return provider, expand_home(model) if provider == "hf" else model
    if provider in _PROVIDERS:
        if colon:
            raise ConfigError(f"{spec!r}: {provider!r} plays without a model. Write {provider}.")
        return provider, None
    if spec == smollm2.NAME or (spec and Path(expand_home(spec)).exists()):
        return "hf", expand_home(spec)
    if not colon and "/" in spec:
        check_model_name(spec)
        raise ConfigError(f"{spec!r} may be a model on the Hub. Write hf:{spec}.")
    known = (*_PROVIDERS, smollm2.NAME)
    forms = "oracle, random, openai:MODEL, anthropic:MODEL, hf:MODEL, a model's folder or smollm2"
    raise ConfigError(f"Unknown agent {spec!r}. {did_you_mean(provider, known, f'Write {forms}.')}")


def agent_from_spec(spec: str, **options: Any) -> Agent:
    """Build the agent that a spec names, such as "openai:gpt-5-mini" or "hf:models/wordle".

    `options` are fields of `AgentConfig`: temperature, llm_endpoint, extra, device, ...
    """
    provider, model = parse_agent(spec)
    return agent_from_config(AgentConfig(provider=provider, model=model, **options))
