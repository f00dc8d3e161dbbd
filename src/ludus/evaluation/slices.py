"""Results by environment and by difficulty.

The difficulty of a task is given by the arguments of `reset` in which the tasks of its environment
differ, such as the values of `sweep`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ludus.data.interval_estimates import MeanEstimate
from ludus.data.tool_schema import JsonObject
from ludus.evaluation.metrics import (
    COMPARED_METRICS,
    Attempt,
    Metric,
    estimate_all,
    estimate_deltas,
)

MAX_LEVELS = 30
"""With more combinations of arguments they are different tasks, not levels of difficulty."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The results of all candidates in one environment, or at one of its difficulties."""

    environment: str
    level: str | None
    """The arguments of its tasks, such as `max_digits=3`; None: all tasks of the environment."""
    metrics: tuple[Mapping[str, MeanEstimate], ...]
    """By name, for each candidate."""
    deltas: tuple[Mapping[str, MeanEstimate], ...]
    """Difference from the first candidate; empty for that one."""


def build_slices(
    candidates: Sequence[Sequence[Attempt]], metrics: Sequence[Metric]
) -> tuple[Slice, ...]:
    """Return the environments, if there are several, each followed by its levels of difficulty."""
    compared = [metric for metric in metrics if metric.name in COMPARED_METRICS]

    def build(environment: str, level: str | None, parts: Sequence[Sequence[Attempt]]) -> Slice:
        deltas = [estimate_deltas(compared, parts[0], part) for part in parts[1:]]
        estimates = tuple(estimate_all(compared, part) for part in parts)
        return Slice(environment, level, estimates, ({}, *deltas))

    environments = sorted({each.environment for attempts in candidates for each in attempts})
    slices = []
    for environment in environments:
        own = [[it for it in attempts if it.environment == environment] for attempts in candidates]
        if len(environments) > 1:
            slices.append(build(environment, None, own))
        levels = find_levels([attempt for attempts in own for attempt in attempts])
        for level in dict.fromkeys(levels.values()):
            at_level = [[it for it in one if levels[it.plan_index] == level] for one in own]
            slices.append(build(environment, level, at_level))
    return tuple(slices)


def find_levels(attempts: Sequence[Attempt]) -> dict[int, str]:
    """Map the plan index of each attempt to its level of difficulty, from easy to hard.

    Empty if all tasks have the same arguments, or if they have more combinations than levels.
    """
    arguments = {
        attempt.plan_index: _flatten(attempt.arguments)
        for attempt in sorted(attempts, key=lambda attempt: attempt.plan_index)
    }
    names_of_any = dict.fromkeys(name for one in arguments.values() for name in one)
    # The values of each argument in the order of the plan, which words in `sweep` have too.
    values = {
        name: list(dict.fromkeys(_format_value(one.get(name)) for one in arguments.values()))
        for name in names_of_any
    }
    varying = [name for name in names_of_any if len(values[name]) > 1]

    def difficulty(name: str, value: object) -> tuple[int, float]:
        """Numbers by their size, then all others in the order of the plan."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return 0, float(value)
        return 1, values[name].index(_format_value(value))

    keys = {
        index: tuple(difficulty(name, one.get(name)) for name in varying)
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


def _flatten(arguments: JsonObject, prefix: str = "") -> JsonObject:
    """Return the arguments without the seed, and fields of objects under dotted names."""
    flat: JsonObject = {}
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(dict(value), f"{prefix}{name}."))
        elif name != "seed" or prefix:
            flat[f"{prefix}{name}"] = value
    return flat


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
