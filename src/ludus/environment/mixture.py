"""Several environments as one: each task is drawn from one of them, by weight.

wordle,catch              as much of the one as of the other
wordle=0.7,catch=0.3      weights, which need not add up to 1
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ludus.environment.registry import find_environment, is_url
from ludus.environment.source_file import recorded_name
from ludus.errors import ConfigError

_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
"""Multiples of it fill the unit interval evenly, so that any stretch of tasks has the shares."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Specs with their shares, which add up to 1."""

    shares: tuple[tuple[str, float], ...]

    @property
    def specs(self) -> tuple[str, ...]:
        return tuple(spec for spec, _ in self.shares)

    def pick(self, number: int, offset: float = 0.0) -> str:
        """The environment of task `number`; the same number always gets the same one."""
        point = (offset + number * _GOLDEN_RATIO) % 1.0
        for spec, share in self.shares[:-1]:
            if point < share:
                return spec
            point -= share
        return self.shares[-1][0]

    def check_installed(self) -> None:
        """Raise EnvironmentNotFound for a spec that this process cannot build; URLs pass."""
        for spec in self.specs:
            if not is_url(spec):
                find_environment(spec)

    def __str__(self) -> str:
        """As run folders record it: an environment in a file by its module and class."""
        if len(self.shares) == 1:
            return recorded_name(self.shares[0][0])
        return ",".join(f"{recorded_name(spec)}={share:g}" for spec, share in self.shares)


def mix(weights: Mapping[str, float]) -> Mixture:
    """`mix({"wordle": 0.7, "catch": 0.3})`."""
    if not weights:
        raise ConfigError("A mix needs at least one environment.")
    for spec, weight in weights.items():
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigError(f"The weight of {spec!r} must be a number above 0, not {weight:g}.")
    names = [recorded_name(spec) for spec in weights]
    for spec, name in zip(weights, names, strict=True):
        if names.count(name) > 1:
            raise ConfigError(f"{spec!r} and another environment are both called {name!r}.")
    total = sum(weights.values())
    return Mixture(tuple((spec, weight / total) for spec, weight in weights.items()))


def parse_mixture(text: str) -> Mixture:
    """What a command line says: a spec or a URL, or several with or without weights."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        spec, weight = _parse_weight(part.strip())
        if not spec:
            raise ConfigError(f"{text!r} is no mix: write it like wordle=0.7,catch=0.3.")
        if spec in weights:
            raise ConfigError(f"{text!r} names {spec!r} twice.")
        weights[spec] = weight
    return mix(weights)


def _parse_weight(part: str) -> tuple[str, float]:
    spec, equals, weight = part.rpartition("=")
    if not equals or "?" in spec or ":" in weight:
        return part, 1.0
    try:
        return spec, float(weight)
    except ValueError:
        raise ConfigError(
            f"{weight!r} is no weight for {spec!r}: write it like wordle=0.7,catch=0.3."
        ) from None
