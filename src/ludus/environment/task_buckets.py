"""Axes of tasks, and the buckets that their combinations of values make.

An axis is an argument of `reset` with the values that it ranges over:

max_terms=2..5              whole numbers, from easy to hard
difficulty=easy,hard        a list of JSON values, or of words
variant=chain_sum,gcd       variants of the environment
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture, mix
from ludus.environment.registry import find_environment, is_remote
from ludus.environment.spec import IMPLICIT_TASK_ARGUMENTS, EnvSpec
from ludus.errors import ConfigError, LudusError, did_you_mean

MAX_BUCKETS = 256
"""Each combination of values needs its attempts, so that its success rate is known."""
VARIANT = "variant"
_FORMS = "NAME=LOW..HIGH or NAME=VALUE,VALUE"
_RANGE = re.compile(r"\s*(-?\d+)\s*\.\.\s*(-?\d+)\s*")


@dataclass(frozen=True, slots=True)
class TaskAxis:
    """A task argument, or `variant`, and its values from easy to hard."""

    name: str
    values: tuple[object, ...]


def parse_axes(texts: Sequence[str], *, option: str) -> tuple[TaskAxis, ...]:
    """Parse the axes that `option` has; their buckets are the product of their values."""
    if isinstance(texts, str):
        raise ConfigError(f"`{option}` must be a sequence of texts, got {texts!r} alone.")
    values: dict[str, Sequence[object]] = {}
    for text in texts:
        name, _, values_text = (part.strip() for part in text.partition("="))
        if not (name and values_text):
            raise ConfigError(f"`{option}` {text!r} is not of the form {_FORMS}.")
        if name == "seed":
            raise ConfigError(f"`{option}` cannot range over seed: it is drawn for every task.")
        if name in values:
            raise ConfigError(f"`{option}` names {name} twice. Give all of its values at once.")
        values[name] = _parse_values(f"`{option}` {text!r}", values_text)
    count = prod(map(len, values.values()))
    if count > MAX_BUCKETS:
        raise ConfigError(
            f"`{option}` has {count:,} combinations of values, and at most {MAX_BUCKETS} can be "
            "followed. Give fewer values or arguments."
        )
    return tuple(TaskAxis(name, tuple(each)) for name, each in values.items())


def _parse_values(where: str, text: str) -> Sequence[object]:
    """The ends of a range, a list of JSON values, or words, each of which may be JSON."""
    if (match := _RANGE.fullmatch(text)) is not None:
        low, high = int(match[1]), int(match[2])
        if low > high:
            raise ConfigError(f"{where} is empty: {low} is above {high}. Give the lower end first.")
        return range(low, high + 1)
    if ".." in text:
        raise ConfigError(f"{where}: the ends of a range must be whole numbers.")
    try:
        values: list[object] = json.loads(f"[{text}]")
    except ValueError:
        values = []
        for word in map(str.strip, text.split(",")):
            if not word:
                raise ConfigError(f"{where} has an empty value.") from None
            try:
                values.append(json.loads(word))
            except ValueError:
                values.append(word)
    texts = list(map(format_value, values))
    for value in texts:
        if texts.count(value) > 1:
            raise ConfigError(f"{where} has the value {value} twice.")
    return values


def format_value(value: object) -> str:
    """A value as it is typed."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tasks of about the same difficulty."""

    label: str
    """Its values as they are typed: `max_terms=3`."""
    spec: str
    task: JsonObject
    """Arguments of `reset` that all its tasks have."""

    @property
    def choice(self) -> tuple[str, JsonObject]:
        """Environment and arguments, as `Plan.choose` returns them."""
        return self.spec, self.task


def select_environments(environments: Mixture, axes: Sequence[TaskAxis], *, option: str) -> Mixture:
    """Select the environments that the axes vary: the given one, or variants of it.

    `option` is the argument that the axes come from, for errors.
    """
    if not axes:
        return environments
    if len(environments.specs) > 1:
        raise ConfigError(
            f"`{option}` needs one environment, got {environments}. To draw from variants of "
            "one, use variant=NAME,NAME."
        )
    (spec,) = environments.specs
    variants = next((axis.values for axis in axes if axis.name == VARIANT), None)
    env_spec = _find_spec(spec)
    if variants is None or (env_spec is not None and VARIANT in env_spec.task_arguments):
        return environments
    if is_remote(spec) or ":" in spec:
        raise ConfigError(
            f"`{option}` ranges over variants, and {spec} is one environment already. Give the "
            "name of an environment that has variants."
        )
    return mix({f"{spec}:{variant}": 1.0 for variant in variants})


def build_buckets(
    environments: Mixture, axes: Sequence[TaskAxis], task: Mapping[str, object], *, option: str
) -> tuple[Bucket, ...]:
    """All buckets, from easy to hard: by the sum of positions on the axes, except variants.

    `environments` come from `select_environments`. `task` are the arguments of all tasks, into
    which fields of an argument that is an object are merged. Unknown arguments raise.
    """
    if not axes:
        return ()
    specs = environments.specs
    arguments = [axis for axis in axes if len(specs) == 1 or axis.name != VARIANT]
    paths = {
        (spec, axis.name): _find_path(axis.name, spec, option)
        for spec in specs
        for axis in arguments
    }
    ranked = []
    for spec in specs:
        variant = [f"{VARIANT}={spec.partition(':')[2]}"] if len(specs) > 1 else []
        for positions in product(*(range(len(axis.values)) for axis in arguments)):
            merged: JsonObject = {}
            labels = list(variant)
            for axis, at in zip(arguments, positions, strict=True):
                argument, *fields = paths[spec, axis.name]
                common, value = task.get(argument), axis.values[at]
                shared = common if fields and isinstance(common, Mapping) else None
                if argument in task and (shared is None or fields[0] in shared):
                    name = ".".join((argument, *fields))
                    raise ConfigError(f"`task` and `{option}` both set {name}. Remove one of them.")
                if fields:
                    value = {**(shared or {}), **merged.get(argument, {}), fields[0]: value}
                merged[argument] = value
                labels.append(f"{axis.name}={format_value(axis.values[at])}")
            ranked.append((sum(positions), Bucket(" ".join(labels), spec, merged)))
    return tuple(bucket for _, bucket in sorted(ranked, key=lambda pair: pair[0]))


def _find_path(name: str, spec: str, option: str) -> tuple[str, ...]:
    """The argument of `reset` with this name, or the argument and the field of it."""
    argument, _, field = name.partition(".")
    path = (argument, field) if field else (argument,)
    env_spec = _find_spec(spec)
    if env_spec is None:
        return path  # It is served elsewhere: its own error will say what is wrong.
    known = [each for each in env_spec.task_arguments if each not in IMPLICIT_TASK_ARGUMENTS]
    if argument in known:
        return path
    fields: Mapping[str, Sequence[str]] = {}
    if hasattr(env_spec.cls, "argument_fields"):
        fields = env_spec.cls.argument_fields(env_spec.variant)
    for owner, names in fields.items():
        if name in names:
            return (owner, name)
    if env_spec.accepts_any_task:
        return path
    known += [each for names in fields.values() for each in names]
    listed = f"It has {', '.join(known)}." if known else "It has none."
    raise ConfigError(
        f"`{option}`: {spec} has no task argument {name!r}. {did_you_mean(name, known, listed)}"
    )


def _find_spec(spec: str) -> EnvSpec | None:
    try:
        return find_environment(spec)
    except LudusError:
        return None


def evenly(buckets: Sequence[Bucket], count: int) -> Callable[[int], tuple[str, JsonObject]]:
    """`Plan.choose` for `count` tasks: the same number from each bucket.

    Of more buckets than tasks, evenly spaced ones are chosen.
    """

    def choose(number: int) -> tuple[str, JsonObject]:
        at = number * len(buckets) // count if count < len(buckets) else number
        return buckets[at % len(buckets)].choice

    return choose
