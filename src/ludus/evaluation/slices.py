"""Results of parts of the tasks: by environment, and by difficulty.

The difficulty of a task are the arguments of `reset` in which the tasks of its environment differ,
such as the values of `sweep`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.data.estimates import MeanEstimate
from ludus.data.tool_schema import JsonObject
from ludus.evaluation.metrics import (
    COMPARED_METRICS,
    Attempt,
    Metric,
    estimate,
    estimate_difference,
)

MAX_LEVELS = 30
"""With more combinations of arguments they are different tasks, not levels of difficulty."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The results of all candidates in one environment, or at one difficulty in it."""

    environment: str
    level: str | None
    """The arguments of its tasks, such as `max_digits=3`; None: all tasks of the environment."""
    estimates: tuple[Mapping[str, MeanEstimate], ...]
    """By metric, for each candidate."""
    deltas: tuple[Mapping[str, MeanEstimate], ...]
    """Difference from the first candidate; empty for that one."""

    def as_json(self) -> JsonObject:
        def to_json(each: Mapping[str, MeanEstimate]) -> JsonObject:
            return {name: estimate.as_json() for name, estimate in each.items()}

        return {
            "environment": self.environment,
            "level": self.level,
            "metrics": list(map(to_json, self.estimates)),
            "deltas": list(map(to_json, self.deltas)),
        }


def build_slices(
    candidates: Sequence[Sequence[Attempt]], metrics: Sequence[Metric]
) -> tuple[Slice, ...]:
    """Return the environments, if there are several, each followed by its levels of difficulty."""
    everything = [attempt for attempts in candidates for attempt in attempts]
    environments = sorted({attempt.environment for attempt in everything})
    slices = []
    for environment in environments:
        own = [[it for it in attempts if it.environment == environment] for attempts in candidates]
        if len(environments) > 1:
            slices.append(_build_slice(environment, None, own, metrics))
        levels = find_levels([attempt for attempts in own for attempt in attempts])
        for level in dict.fromkeys(levels.values()):
            at_level = [[it for it in one if levels[it.plan_index] == level] for one in own]
            slices.append(_build_slice(environment, level, at_level, metrics))
    return tuple(slices)


def find_levels(attempts: Sequence[Attempt]) -> dict[int, str]:
    """Return the level of each attempt by its index in the plan, from easy to hard.

    Empty if all tasks have the same arguments, or if they have more combinations than levels.
    """
    arguments = {
        attempt.plan_index: _flatten(attempt.arguments)
        for attempt in sorted(attempts, key=lambda attempt: attempt.plan_index)
    }
    names_of_any = dict.fromkeys(name for one in arguments.values() for name in one)
    # The values of each argument in the order of the plan, which is that of words in `sweep`.
    values = {
        name: list(dict.fromkeys(_format_value(one.get(name)) for one in arguments.values()))
        for name in names_of_any
    }
    varying = [name for name in names_of_any if len(values[name]) > 1]
    keys = {
        index: tuple(_sort_key(one.get(name), values[name]) for name in varying)
        for index, one in arguments.items()
    }
    if not 1 < len(set(keys.values())) <= MAX_LEVELS:
        return {}
    # The field's own name, unless two arguments have a field of this name.
    short = [name.rpartition(".")[2] for name in varying]
    names = varying if len(set(short)) < len(short) else short
    return {
        index: " ".join(
            f"{name}={_format_value(arguments[index].get(path))}"
            for name, path in zip(names, varying, strict=True)
        )
        for index in sorted(keys, key=lambda index: (keys[index], index))
    }


def _build_slice(
    environment: str,
    level: str | None,
    candidates: Sequence[Sequence[Attempt]],
    metrics: Sequence[Metric],
) -> Slice:
    sliced = [metric for metric in metrics if metric.name in COMPARED_METRICS]
    estimates, deltas = [], []
    for number, attempts in enumerate(candidates):
        own = {metric.name: estimate(metric, attempts) for metric in sliced}
        against = {
            metric.name: estimate_difference(metric, candidates[0], attempts)
            for metric in sliced
            if number > 0
        }
        estimates.append({name: each for name, each in own.items() if each is not None})
        deltas.append({name: each for name, each in against.items() if each is not None})
    return Slice(environment, level, tuple(estimates), tuple(deltas))


def _flatten(arguments: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the arguments without the seed, and fields of objects under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in arguments.items():
        if name == "seed" and not prefix:
            continue
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _sort_key(value: Any, values: Sequence[str]) -> tuple[int, float]:
    """Numbers by their size, then all others by the order of `values`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (0, float(value)) if is_number else (1, values.index(_format_value(value)))


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
