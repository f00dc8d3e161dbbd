"""Mixtures of environments: each task is drawn from one of them, by weight.

wordle,catch              equal weights
wordle=0.7,catch=0.3      weights, which need not add up to 1
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ludus.environment.registry import find_environment, is_remote
from ludus.environment.source_file import recorded_name
from ludus.errors import ConfigError

_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
"""Multiples of it modulo 1 fill the unit interval evenly (a low-discrepancy sequence), so that any
range of tasks has nearly the exact shares."""

_UNQUOTED_COMMA = re.compile(r""",(?=(?:[^'"]|'[^']*'|"[^"]*")*\Z)""")
"""A comma outside of quotes, which may hold one in a command: `mcp:COMMAND --tables 'a,b'`."""
_ENDS_IN_OPTION = re.compile(r"\s-[^\s#]*\Z")


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
        """Raise EnvironmentNotFound for a spec that this process cannot build; servers pass."""
        for spec in self.specs:
            if not is_remote(spec):
                find_environment(spec)

    def __str__(self) -> str:
        """The form in run folders, in which an environment in a file has its module and class."""
        if len(self.shares) == 1:
            return recorded_name(self.shares[0][0])
        return ",".join(f"{recorded_name(spec)}={share:g}" for spec, share in self.shares)


def mix(weights: Mapping[str, float]) -> Mixture:
    """`mix({"wordle": 0.7, "catch": 0.3})`."""
    if not weights:
        raise ConfigError("A mixture needs at least one environment.")
    for spec, weight in weights.items():
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigError(f"The weight of {spec!r} must be positive, got {weight:g}.")
    names = [recorded_name(spec) for spec in weights]
    for spec, name in zip(weights, names, strict=True):
        if names.count(name) > 1:
            raise ConfigError(f"{spec!r} and another environment have the same name, {name!r}.")
    total = sum(weights.values())
    return Mixture(tuple((spec, weight / total) for spec, weight in weights.items()))


def parse_mixture(text: str) -> Mixture:
    """Parse a spec or a URL, or several of them, with or without weights."""
    weights: dict[str, float] = {}
    for part in map(str.strip, _UNQUOTED_COMMA.split(text)):
        spec, equals, number = part.rpartition("=")
        # In a URL, a task file's name or an option of a command, the sign is part of the spec.
        if not equals or "?" in spec or {":", "#"} & {*number} or _ENDS_IN_OPTION.search(spec):
            spec, number = part, "1"
        try:
            weight = float(number)
        except ValueError:
            raise ConfigError(
                f"Invalid weight {number!r} for {spec!r}. Write it like wordle=0.7,catch=0.3."
            ) from None
        if not spec:
            raise ConfigError(f"Invalid mixture {text!r}. Write it like wordle=0.7,catch=0.3.")
        if spec in weights:
            raise ConfigError(f"{text!r} names {spec!r} twice.")
        weights[spec] = weight
    return mix(weights)
