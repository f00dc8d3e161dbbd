"""Candidates of an evaluation: a label, and the agent that plays.

oracle   random   openai:gpt-5-mini   anthropic:claude-haiku-4-5
smollm2   hf:models/chain_sum   hf:USER/NAME   sft=hf:models/chain_sum

Those that are local models are checked before an evaluation starts; no weights are read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ludus.agents.agent import Agent
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, TemplateUnmarked
from ludus.policy.agent_factory import OPTION_PROVIDERS, AgentConfig, agent_from_config, parse_agent
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.device import choose_device, choose_dtype
from ludus.policy.hf_loading import require_transformers
from ludus.policy.load import load_tokenizer
from ludus.policy.model_ref import check_model, find_local_model
from ludus.rollout.progress import PhaseProgress, ProgressCallback

_LABEL_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PROVIDERS = {**OPTION_PROVIDERS, "llm_endpoint": ("openai",)}
"""An endpoint that candidates share is not Anthropic's."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent to evaluate, by label."""

    label: str
    """Its name in the table, and the name of its run folder."""
    agent: Agent = field(repr=False)
    """Closed once it has played; a local model is loaded when it starts."""
    config: AgentConfig | None = None

    def __post_init__(self) -> None:
        _check_label(self.label)

    @property
    def model(self) -> str | None:
        """Name of the model, if it runs in this process."""
        is_local = self.config is not None and self.config.provider == "hf"
        return self.config.model if is_local and self.config is not None else None

    @property
    def is_greedy(self) -> bool:
        """Whether it takes the most likely token each time: attempts at a task are equal."""
        return self.model is not None and self.config is not None and not self.config.temperature


def parse_candidates(texts: Sequence[str], config: AgentConfig | None = None) -> list[Candidate]:
    """Parse candidates such as "oracle" or "sft=hf:models/chain_sum".

    They share the options of the config, each as far as its provider supports them. Raises
    ConfigError for options that apply to none of them.
    """
    config = config or AgentConfig()
    if config.provider or config.model:
        raise ConfigError("`provider` and `model` are parts of a `candidate`: openai:gpt-5-mini.")
    parsed = [_parse_candidate(text) for text in texts]
    providers = {provider for _, provider, _ in parsed}
    for option, supported in _PROVIDERS.items():
        if getattr(config, option) not in (None, {}) and not providers & {*supported}:
            kinds = " or ".join(f"{provider}:MODEL" for provider in supported)
            raise ConfigError(f"`{option}` has no effect: no candidate is {kinds}.")
    with_template = {"hf", "openai"} if config.llm_endpoint else {"hf"}
    if config.chat_template_kwargs and not providers & with_template:
        raise ConfigError(
            "`thinking` and `chat_template_kwargs` have no effect: no candidate is hf:MODEL, or "
            "openai:MODEL with `llm_endpoint`."
        )
    candidates = []
    for label, provider, model in parsed:
        unset: JsonObject = {
            option: {} if option == "extra" else None
            for option, supported in _PROVIDERS.items()
            if provider not in supported and option != "model"
        }
        if provider not in with_template:
            unset["chat_template_kwargs"] = {}
        if provider == "hf" and config.temperature is None:
            unset["temperature"] = 0.0
        agent_config = replace(config, provider=provider, model=model, **unset)
        candidates.append(Candidate(label, agent_from_config(agent_config), agent_config))
    return candidates


def check_labels(candidates: Sequence[Candidate], *, reserved: Sequence[str] = ()) -> None:
    """Raise ConfigError without candidates, and for labels that are reserved or not unique.

    The labels become names of folders, so case is ignored.
    """
    if not candidates:
        raise ConfigError("No candidates given. Give at least one as `candidate`, such as oracle.")
    reserved_labels, labels = {name.casefold() for name in reserved}, set[str]()
    for candidate in candidates:
        label = candidate.label.casefold()
        if label in reserved_labels:
            raise ConfigError(
                f"A candidate cannot be called {candidate.label!r}: an output file has that name."
            )
        if label in labels:
            raise ConfigError(
                f"Two candidates are called {candidate.label!r}. Give each `candidate` a label of "
                "its own, such as base=… and sft=…"
            )
        labels.add(label)


def _parse_candidate(text: str) -> tuple[str, str, str | None]:
    label, equals, spec = text.partition("=")
    if not equals or ":" in label or find_local_model(text) is not None:
        # The equals sign, if any, is part of a model's name.
        label, spec = "", text
    else:
        _check_label(label)
    provider, model = parse_agent(spec)
    if provider == "human":
        raise ConfigError("A human cannot be a candidate. Use `ludus play` to play yourself.")
    if label:
        return label, provider, model
    if model is None:
        label = provider
    else:
        # The last part of a path or Hub id, with characters that folder names may have.
        name = Path(model).name or Path(model).resolve().name
        label = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-_") or "model"
    return label, provider, model


def _check_label(label: str) -> None:
    if _LABEL_PATTERN.fullmatch(label) is None:
        raise ConfigError(
            f"{label!r} cannot be a candidate's label, because it becomes the name of a folder. "
            "Use letters, digits, dots and dashes."
        )


async def check_local_models(candidates: Sequence[Candidate], progress: ProgressCallback) -> None:
    """Check all local models before the first candidate plays, which may take hours."""
    local = [each.config for each in candidates if each.config and each.config.provider == "hf"]
    for config in local:
        check_model(config.model or "", device=config.device, dtype=config.dtype)
    progress(PhaseProgress("Checking the candidates", in_log=bool(local)))
    for config in local:
        require_transformers("Evaluating a local model", "torch")
        choose_dtype(config.dtype, choose_device(config.device))
        tokenizer = await asyncio.to_thread(load_tokenizer, config.model or "")
        try:
            find_chat_format(tokenizer, chat_template_kwargs=config.chat_template_kwargs)
        except TemplateUnmarked as error:
            raise TemplateUnmarked(f"{config.model} cannot be evaluated. {error}") from None
