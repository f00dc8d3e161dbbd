"""Who is evaluated: a label, and how to make the agent that plays.

oracle   random   openai:gpt-5-mini   anthropic:claude-haiku-4-5
smollm2   hf:models/chain_sum   hf:USER/NAME   sft=hf:models/chain_sum
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ludus.agents.agent import Agent
from ludus.errors import ConfigError
from ludus.policy.agent_factory import parse_agent
from ludus.policy.model_ref import find_local_model

_LABEL_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MODEL_PROVIDERS = ("openai", "anthropic", "hf")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One who is evaluated."""

    label: str
    """What the table calls it, and the name of its run folder."""
    make_agent: Callable[[], Agent] = field(repr=False)
    """A new agent: no model is loaded before it has to play."""
    model: str | None = None
    """The name of a model that runs in this process."""
    device: str | None = None
    dtype: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_label(self.label)


@dataclass(frozen=True, slots=True)
class CandidateConfig:
    """How models are asked; what means nothing to a candidate is not its business."""

    endpoint: str | None = None
    """A server with OpenAI's chat API, for `openai:` candidates."""
    temperature: float | None = None
    """None: 0 for local models, the model's own for others."""
    device: str | None = None
    dtype: str | None = None
    concurrency: int = 64
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """For local models, and for those behind an endpoint."""

    def template_kwargs_for(self, provider: str) -> Mapping[str, Any]:
        has_template = provider == "hf" or (provider == "openai" and self.endpoint is not None)
        return self.chat_template_kwargs if has_template else {}


def parse_candidates(
    texts: Sequence[str], config: CandidateConfig | None = None
) -> list[Candidate]:
    """The candidates, as a command line writes them."""
    config = config or CandidateConfig()
    parsed = [_parse_candidate(text) for text in texts]
    _reject_unused_config(config, {provider for _, provider, _ in parsed})
    return [
        Candidate(
            label,
            partial(_build_agent, provider, model, config),
            model=model if provider == "hf" else None,
            device=config.device if provider == "hf" else None,
            dtype=config.dtype if provider == "hf" else None,
            chat_template_kwargs=config.template_kwargs_for(provider),
        )
        for label, provider, model in parsed
    ]


def _parse_candidate(text: str) -> tuple[str, str, str | None]:
    """Label, provider and model."""
    label, spec = _split_label(text)
    provider, model = parse_agent(spec)
    if provider == "human":
        raise ConfigError("A person cannot be a candidate. Play with `ludus play`.")
    return label or (provider if model is None else _default_label(model)), provider, model


def _split_label(text: str) -> tuple[str, str]:
    """Label and who; the label is empty where the equals sign belongs to a model's name."""
    label, equals, spec = text.partition("=")
    if not equals or ":" in label or find_local_model(text) is not None:
        return "", text
    _check_label(label)
    return label, spec


def _check_label(label: str) -> None:
    if _LABEL_PATTERN.fullmatch(label) is None:
        raise ConfigError(
            f"{label!r} cannot be a candidate's label: it becomes the name of a folder. "
            "Use letters, digits, dots and dashes."
        )


def _default_label(model: str) -> str:
    """The last part of a path or a Hub id, as far as it can be the name of a folder."""
    name = Path(model).name or Path(model).resolve().name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-_") or "model"


def _reject_unused_config(config: CandidateConfig, providers: set[str]) -> None:
    for option, value, wanted in (
        ("--llm-endpoint", config.endpoint, {"openai"}),
        ("--temperature", config.temperature, {*_MODEL_PROVIDERS}),
        ("--device", config.device, {"hf"}),
        ("--dtype", config.dtype, {"hf"}),
    ):
        if value is not None and not wanted & providers:
            kinds = ", ".join(f"{name}:MODEL" for name in _MODEL_PROVIDERS if name in wanted)
            raise ConfigError(f"{option} means nothing here: no candidate is one of {kinds}.")
    if config.chat_template_kwargs and not any(map(config.template_kwargs_for, providers)):
        raise ConfigError(
            "--thinking, --no-thinking and --chat-template-kwargs mean nothing here: no candidate "
            "is hf:MODEL, or openai:MODEL behind --llm-endpoint."
        )


def _build_agent(provider: str, model: str | None, config: CandidateConfig) -> Agent:
    from ludus.policy.agent_factory import AgentConfig, agent_from_config

    local = provider == "hf"
    temperature = 0.0 if local and config.temperature is None else config.temperature
    return agent_from_config(
        AgentConfig(
            provider=provider,
            model=model,
            llm_endpoint=config.endpoint if provider == "openai" else None,
            temperature=temperature if model is not None else None,
            chat_template_kwargs=config.template_kwargs_for(provider),
            device=config.device if local else None,
            dtype=config.dtype if local else None,
            concurrency=config.concurrency,
        )
    )
