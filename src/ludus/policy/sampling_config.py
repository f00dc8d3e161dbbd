"""How a local model is to be sampled: what a user has set, and what its makers recommend.

What the settings do to a choice of tokens is `ludus.policy.engine.sampling`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, did_you_mean
from ludus.policy import smollm2
from ludus.policy.engine.sampling import SamplingParams
from ludus.policy.model_ref import ModelKind, ModelRef, base_model_name, find_local_model

_EXTRA_TYPES: Mapping[str, tuple[type, str]] = {
    "top_p": (float, "number"),
    "top_k": (int, "whole number"),
    "seed": (int, "whole number"),
}
"""The extra settings, and what each has to be."""
_CLI_OPTIONS = {
    "temperature": "--temperature",
    "max_tokens": "--max-tokens",
    "chat_template_kwargs": "--chat-template-kwargs",
}
"""What other providers take among the extras, and where it is set for all of them."""

_SAMPLING_FIELDS = ("temperature", "top_p", "top_k")
_GENERATION_CONFIG = "generation_config.json"


def validate_sampling_options(temperature: float | None, extra: Mapping[str, Any]) -> JsonObject:
    """Only what was set, once it is known that it can be."""
    for name, value in extra.items():
        if name in _CLI_OPTIONS:
            raise ConfigError(f"{name} is no extra setting. Set it with {_CLI_OPTIONS[name]}.")
        if name not in _EXTRA_TYPES:
            hint = did_you_mean(name, _EXTRA_TYPES, f"There are: {', '.join(_EXTRA_TYPES)}.")
            raise ConfigError(f"A local model has no setting {name!r}. {hint}")
        kind, words = _EXTRA_TYPES[name]
        if isinstance(value, bool) or not isinstance(value, int | kind):
            raise ConfigError(f"{name} is set to {value!r}, which is no {words}.")
    given = dict(extra) if temperature is None else {"temperature": temperature, **extra}
    _apply_options(SamplingParams(), given)
    return given


def resolve_sampling(given: JsonObject, model: Any) -> SamplingParams:
    """The settings given; without a temperature among them, over those of the model's makers.

    With one it is known what is wanted, and a cut that somebody else recommends for another
    temperature is not part of it.
    """
    return _apply_options(
        SamplingParams() if "temperature" in given else recommended_sampling(model), given
    )


def recommended_sampling(model: Any) -> SamplingParams:
    """How the model's generation config says that it is to be sampled; plainly, if it does not."""
    config = getattr(model, "generation_config", None)
    return SamplingParams() if config is None else _parse_generation_config(config.to_dict())


def recommended_sampling_for(
    name: str, visited: frozenset[str] = frozenset()
) -> SamplingParams | None:
    """The same before the model is loaded; None for a model on the Hub.

    What is in the Hub's cache is not looked at: it is there only once a run has begun.
    """
    if name == smollm2.NAME:
        return SamplingParams()
    source = find_local_model(name)
    if source is None or source.path in visited:
        return None
    if source.kind is ModelKind.ADAPTER:
        return recommended_sampling_for(base_model_name(source), visited | {source.path})
    return _parse_generation_config(_read_generation_config(source))


def _read_generation_config(source: ModelRef) -> Mapping[str, Any]:
    try:
        text = (Path(source.path) / _GENERATION_CONFIG).read_text(encoding="utf-8")
        config = json.loads(text)
    except (OSError, ValueError):
        return {}  # Who loads the model will say what is wrong with it.
    return config if isinstance(config, dict) else {}


def describe_sampling(given: JsonObject, recommended: SamplingParams | None) -> JsonObject:
    """What decides on the tokens: what was set, over what the makers advise where that holds."""
    if recommended is None or "temperature" in given:
        return given
    cuts = {
        "top_p": recommended.top_p if recommended.top_p < 1 else None,
        "top_k": recommended.top_k,
    }
    made = {"temperature": recommended.temperature, **cuts}
    return {name: value for name, value in made.items() if value is not None} | given


def _parse_generation_config(config: Mapping[str, Any]) -> SamplingParams:
    named = {name: config.get(name) for name in _SAMPLING_FIELDS if config.get("do_sample")}
    return SamplingParams(**{name: value for name, value in named.items() if value})


def _apply_options(sampling: SamplingParams, given: JsonObject) -> SamplingParams:
    return replace(sampling, **{name: value for name, value in given.items() if name != "seed"})
