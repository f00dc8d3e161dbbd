"""Build agents from a config, or from a spec such as `openai:gpt-5-mini`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from ludus.agents.agent import Agent
from ludus.agents.api_keys import find_variable
from ludus.agents.provider import base_url
from ludus.errors import ConfigError, closest_match, did_you_mean
from ludus.options import Option, expand_path, parse_assignments, parse_duration
from ludus.policy import smollm2
from ludus.policy.model_ref import check_name, expand_home, find_local_model


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
    temperature: Annotated[float | None, Option("Sampling", default="the model's default")] = None
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
        float,
        Option("Limits", hidden=True, metavar="TIME", default="5m", parse=parse_duration),
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


def _endpoint_from_environment() -> str | None:
    """The endpoint that OPENAI_BASE_URL names, as for OpenAI's library; None for OpenAI's own."""
    from ludus.agents.openai import OpenAIAgent

    if (url := find_variable(_BASE_URL_VARIABLE)) is None:
        return None
    try:
        endpoint = base_url(url)
    except ConfigError as error:
        raise ConfigError(f"{_BASE_URL_VARIABLE} is wrong. {error}") from None
    return None if endpoint == OpenAIAgent.default_base_url else endpoint


def agent_from_config(config: AgentConfig) -> Agent:
    """Build the agent. The default provider is the oracle, or openai if `llm_endpoint` is set."""
    provider = config.provider or ("openai" if config.llm_endpoint else "oracle")
    if provider not in _PROVIDERS:
        hint = did_you_mean(provider, _PROVIDERS, f"Known providers: {', '.join(_PROVIDERS)}.")
        raise ConfigError(f"Unknown `provider` {provider!r}. {hint}")
    if provider == "openai" and not config.llm_endpoint:
        config = replace(config, llm_endpoint=_endpoint_from_environment())
    supported = _OPTIONS_BY_PROVIDER.get(provider, frozenset())
    for option in _OPTIONS:
        if getattr(config, option) not in (None, "", {}) and option not in supported:
            problem = (
                f"`{option}` needs a `provider`"
                if config.provider is None
                else f"`{option}` is not supported by provider {provider!r}"
            )
            raise ConfigError(f"{problem}. {_suggest_provider(option, config.model or '')}.")
    renders_template = provider == "hf" or (provider == "openai" and config.llm_endpoint)
    if config.chat_template_kwargs and not renders_template:
        advice = (
            f"Set `extra` to '{_THINKING_EXTRAS[provider]}' instead, as its API does."
            if provider in _THINKING_EXTRAS
            else "Leave them out."
        )
        raise ConfigError(
            "`thinking` and `chat_template_kwargs` are for `provider` hf and for an "
            f"`llm_endpoint`; {provider!r} renders no chat template. {advice}"
        )
    if provider in _EXAMPLE_MODELS and not config.model:
        example = _EXAMPLE_MODELS[provider]
        raise ConfigError(f"`provider` {provider} needs a `model`, such as {example}.")
    return _build_agent(provider, config)


def parse_agent(spec: str) -> tuple[str, str | None]:
    """Split `oracle`, `openai:MODEL`, `hf:MODEL`, a folder or `smollm2` into provider and model."""
    provider, colon, model = spec.partition(":")
    if provider in _EXAMPLE_MODELS and model:
        return provider, expand_home(model) if provider == "hf" else model
    if provider in _EXAMPLE_MODELS:
        raise ConfigError(f"{spec!r} names no model. Write {provider}:MODEL.")
    if provider in _PROVIDERS and not colon:
        return provider, None
    if provider in _PROVIDERS:
        raise ConfigError(f"{spec!r}: {provider!r} plays without a model. Write {provider}.")
    if spec == smollm2.NAME or (spec and Path(expand_home(spec)).exists()):
        return "hf", expand_home(spec)
    if not colon and "/" in spec:
        check_name(spec)
        raise ConfigError(f"{spec!r} may be a model on the Hub. Write hf:{spec}.")
    known = (*_PROVIDERS, smollm2.NAME)
    forms = "oracle, random, openai:MODEL, anthropic:MODEL, hf:MODEL, a model's folder or smollm2"
    raise ConfigError(f"Unknown agent {spec!r}. {did_you_mean(provider, known, f'Write {forms}.')}")


def agent_from_spec(spec: str, **options: Any) -> Agent:
    """Build the agent that a spec names, such as "openai:gpt-5-mini" or "hf:models/wordle".

    `options` are fields of `AgentConfig`: temperature, llm_endpoint, extra, device, ...
    """
    known = {option.name for option in fields(AgentConfig)} - {"provider", "model"}
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known, f"Known options: {', '.join(sorted(known))}.")
            raise ConfigError(f"Unknown agent option {name!r}. {hint}")
    provider, model = parse_agent(spec)
    return agent_from_config(AgentConfig(provider=provider, model=model, **options))


def _suggest_provider(option: str, model: str) -> str:
    """Name the provider that was probably meant."""
    # The names of API models have no slash.
    is_local_model = option == "model" and (
        model == smollm2.NAME
        or find_local_model(model) is not None
        or "/" in model
        or closest_match(model.lower(), [smollm2.NAME]) is not None
    )
    if option in _LOCAL_OPTIONS or is_local_model:
        return "Use `provider` hf, for a model that runs in this process"
    if option == "model" and model.startswith("claude"):
        return "Use `provider` anthropic"
    return "Use `provider` openai"


def _build_agent(provider: str, config: AgentConfig) -> Agent:
    model = config.model or ""
    if provider == "oracle":
        from ludus.agents.oracle import OracleAgent

        return OracleAgent()
    if provider == "random":
        from ludus.agents.scripted import RandomAgent

        return RandomAgent()
    if provider == "human":
        from ludus.agents.human import HumanAgent

        return HumanAgent()
    if provider == "openai":
        from ludus.agents.openai import OpenAIAgent

        kwargs = config.chat_template_kwargs
        return OpenAIAgent(model, chat_template_kwargs=kwargs, **_api_options(config))
    if provider == "anthropic":
        from ludus.agents.anthropic import AnthropicAgent

        return AnthropicAgent(model, **_api_options(config))
    from ludus.policy.agent import PolicyAgent

    return PolicyAgent(
        model,
        temperature=config.temperature,
        extra=config.extra,
        device=config.device,
        dtype=config.dtype,
        chat_template_kwargs=config.chat_template_kwargs,
        max_batch=config.concurrency,
    )


def _api_options(config: AgentConfig) -> dict[str, Any]:
    from ludus.agents.api_agent import PriceTable

    return {
        "endpoint": config.llm_endpoint,
        "temperature": config.temperature,
        "extra": config.extra,
        "concurrency": config.concurrency,
        "call_timeout": config.call_timeout,
        "max_retries": config.max_retries,
        "prices": PriceTable.load(config.prices),
    }


_BASE_URL_VARIABLE = "OPENAI_BASE_URL"
_PROVIDERS = ("oracle", "openai", "anthropic", "hf", "random", "human")
_EXAMPLE_MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-4-5", "hf": "smollm2"}
"""The providers that need a model, with an example."""
_THINKING_EXTRAS = {
    "openai": '{"reasoning_effort": "low"}',
    "anthropic": '{"thinking": {"type": "enabled", "budget_tokens": 2000}}',
}
"""The request field that sets the amount of thinking, for APIs without a chat template."""
_MODEL_OPTIONS = frozenset({"model", "temperature", "extra"})
_API_OPTIONS = _MODEL_OPTIONS | {"llm_endpoint", "prices"}
_LOCAL_OPTIONS = frozenset({"device", "dtype"})
_OPTIONS_BY_PROVIDER = {
    "openai": _API_OPTIONS,
    "anthropic": _API_OPTIONS,
    "hf": _MODEL_OPTIONS | _LOCAL_OPTIONS,
}
_OPTIONS = (
    "model",
    "llm_endpoint",
    "temperature",
    "extra",
    "prices",
    "device",
    "dtype",
)
"""Options that not every provider supports, in the order in which they are checked."""
