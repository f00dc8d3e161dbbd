"""How a local model is to be sampled: what a user has set, and what its makers recommend.

What the settings do to a choice of tokens is `ludus.policy.sampling`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ludus.data.tools import JsonObject
from ludus.errors import BadSetting, did_you_mean
from ludus.policy.sampling import Sampling

_KINDS: Mapping[str, tuple[type, str]] = {
    "top_p": (float, "number"),
    "top_k": (int, "whole number"),
    "seed": (int, "whole number"),
}
"""The extra settings, and what each has to be."""


def checked(temperature: float | None, extra: Mapping[str, Any]) -> JsonObject:
    """Only what was set, once it is known that it can be."""
    for name, value in extra.items():
        if name not in _KINDS:
            hint = did_you_mean(name, _KINDS, f"There are: {', '.join(_KINDS)}.")
            raise BadSetting(f"A local model has no setting {name!r}. {hint}")
        kind, words = _KINDS[name]
        if isinstance(value, bool) or not isinstance(value, int | kind):
            raise BadSetting(f"{name} is set to {value!r}, which is no {words}.")
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
    if config is None or not config.do_sample:
        return Sampling()
    named = {name: getattr(config, name, None) for name in ("temperature", "top_p", "top_k")}
    return Sampling(**{name: value for name, value in named.items() if value})


def _applied(sampling: Sampling, given: JsonObject) -> Sampling:
    return replace(sampling, **{name: value for name, value in given.items() if name != "seed"})
