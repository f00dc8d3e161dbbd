"""How a local model is sampled: the user's options, then its generation config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, did_you_mean
from ludus.policy import smollm2
from ludus.policy.engine.sampling import SamplingParams
from ludus.policy.model_ref import ModelKind, model_chain

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_EXTRA_TYPES = {"top_p": float, "top_k": int, "seed": int}
"""The fields of `extra` and their types."""
_OWN_ARGUMENTS = ("temperature", "max_tokens", "chat_template_kwargs")
"""Request fields of other providers that have a separate argument."""
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k")


def validate_sampling_options(temperature: float | None, extra: Mapping[str, object]) -> JsonObject:
    """Return the options that are set, after checking their names, types and ranges."""
    for name, value in extra.items():
        if name in _OWN_ARGUMENTS:
            raise ConfigError(f"`extra` cannot contain {name}. Set `{name}` instead.")
        if name not in _EXTRA_TYPES:
            hint = did_you_mean(name, _EXTRA_TYPES, f"Known fields: {', '.join(_EXTRA_TYPES)}.")
            raise ConfigError(f"Unknown field {name!r} in `extra` of a local model. {hint}")
        if isinstance(value, bool) or not isinstance(value, int | _EXTRA_TYPES[name]):
            description = "an integer" if _EXTRA_TYPES[name] is int else "a number"
            raise ConfigError(f"{name} in `extra` must be {description}, got {value!r}.")
    options = dict(extra) if temperature is None else {"temperature": temperature, **extra}
    _apply_sampling_options(SamplingParams(), options)
    return options


def resolve_sampling(options: JsonObject, model: PreTrainedModel) -> SamplingParams:
    """Apply the options to the model's recommended parameters.

    A given temperature replaces all of these: top_p and top_k belong to another one.
    """
    base = SamplingParams() if "temperature" in options else recommended_sampling(model)
    return _apply_sampling_options(base, options)


def recommended_sampling(model: PreTrainedModel) -> SamplingParams:
    """Return the parameters of the model's generation config, or the defaults without one."""
    config = getattr(model, "generation_config", None)
    return SamplingParams() if config is None else _parse_generation_config(config.to_dict())


def eos_token_ids(model: PreTrainedModel) -> frozenset[int]:
    """The stop tokens of the generation config, which may be more than the template's."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    return frozenset([ids] if isinstance(ids, int) else ids or ())


def recommended_sampling_for(name: str) -> SamplingParams | None:
    """Return the recommended parameters of a model that is not loaded; None for a Hub model."""
    *_, ref = model_chain(name)
    if ref.name == smollm2.NAME:
        return SamplingParams()
    if ref.kind in (ModelKind.HUB, ModelKind.ADAPTER):
        return None
    try:
        config = json.loads((Path(ref.path) / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}  # Loading the model reports what is wrong with it.
    return _parse_generation_config(config if isinstance(config, dict) else {})


def describe_sampling(options: JsonObject, recommended: SamplingParams | None) -> JsonObject:
    """Return the parameters in effect, as `resolve_sampling` combines them."""
    if recommended is None or "temperature" in options:
        return options
    effective = {
        "temperature": recommended.temperature,
        "top_p": recommended.top_p if recommended.top_p < 1 else None,
        "top_k": recommended.top_k,
    }
    return {name: value for name, value in effective.items() if value is not None} | options


def _parse_generation_config(config: JsonObject) -> SamplingParams:
    fields = {name: config.get(name) for name in _SAMPLING_FIELDS if config.get("do_sample")}
    return SamplingParams(**{name: value for name, value in fields.items() if value})


def _apply_sampling_options(sampling: SamplingParams, options: JsonObject) -> SamplingParams:
    """Return the parameters with these options replaced."""
    return replace(sampling, **{name: value for name, value in options.items() if name != "seed"})
