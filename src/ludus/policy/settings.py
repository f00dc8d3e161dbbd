"""How a local model is to be sampled: what a user has set, and what its makers recommend.

What the settings do to a choice of tokens is `ludus.policy.sampling`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ludus.data.tools import JsonObject
from ludus.errors import ConfigError, did_you_mean
from ludus.policy import smollm2
from ludus.policy.sampling import Sampling
from ludus.policy.source import Kind, Source, base_name, here

_KINDS: Mapping[str, tuple[type, str]] = {
    "top_p": (float, "number"),
    "top_k": (int, "whole number"),
    "seed": (int, "whole number"),
}
"""The extra settings, and what each has to be."""
_OPTIONS = {
    "temperature": "--temperature",
    "max_tokens": "--max-tokens",
    "chat_template_kwargs": "--chat-template-kwargs",
}
"""What other providers take among the extras, and where it is set for all of them."""

_ADVICE = ("temperature", "top_p", "top_k")
_GENERATION = "generation_config.json"


def checked(temperature: float | None, extra: Mapping[str, Any]) -> JsonObject:
    """Only what was set, once it is known that it can be."""
    for name, value in extra.items():
        if name in _OPTIONS:
            raise ConfigError(f"{name} is no extra setting. Set it with {_OPTIONS[name]}.")
        if name not in _KINDS:
            hint = did_you_mean(name, _KINDS, f"There are: {', '.join(_KINDS)}.")
            raise ConfigError(f"A local model has no setting {name!r}. {hint}")
        kind, words = _KINDS[name]
        if isinstance(value, bool) or not isinstance(value, int | kind):
            raise ConfigError(f"{name} is set to {value!r}, which is no {words}.")
    given = dict(extra) if temperature is None else {"temperature": temperature, **extra}
    _applied(Sampling(), given)
    return given


def sampling_of(given: JsonObject, model: Any) -> Sampling:
    """The settings given; without a temperature among them, over those of the model's makers.

    With one it is known what is wanted, and a cut that somebody else recommends for another
    temperature is not part of it.
    """
    return _applied(Sampling() if "temperature" in given else recommended(model), given)


def recommended(model: Any) -> Sampling:
    """How the model's generation config says that it is to be sampled; plainly, if it does not."""
    config = getattr(model, "generation_config", None)
    return Sampling() if config is None else _advised(config.to_dict())


def recommended_for(name: str, above: frozenset[str] = frozenset()) -> Sampling | None:
    """The same before the model is loaded; None for a model on the Hub.

    What is in the Hub's cache is not looked at: it is there only once a run has begun.
    """
    if name == smollm2.NAME:
        return Sampling()
    source = here(name)
    if source is None or source.path in above:
        return None
    if source.kind is Kind.ADAPTER:
        return recommended_for(base_name(source), above | {source.path})
    return _advised(_read_config(source))


def _read_config(source: Source) -> Mapping[str, Any]:
    try:
        text = (Path(source.path) / _GENERATION).read_text(encoding="utf-8")
        config = json.loads(text)
    except (OSError, ValueError):
        return {}  # Who loads the model will say what is wrong with it.
    return config if isinstance(config, dict) else {}


def told(given: JsonObject, advised: Sampling | None) -> JsonObject:
    """What decides on the tokens: what was set, over what the makers advise where that holds."""
    if advised is None or "temperature" in given:
        return given
    cuts = {"top_p": advised.top_p if advised.top_p < 1 else None, "top_k": advised.top_k}
    made = {"temperature": advised.temperature, **cuts}
    return {name: value for name, value in made.items() if value is not None} | given


def _advised(config: Mapping[str, Any]) -> Sampling:
    named = {name: config.get(name) for name in _ADVICE if config.get("do_sample")}
    return Sampling(**{name: value for name, value in named.items() if value})


def _applied(sampling: Sampling, given: JsonObject) -> Sampling:
    return replace(sampling, **{name: value for name, value in given.items() if name != "seed"})
