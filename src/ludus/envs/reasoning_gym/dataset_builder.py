"""Builds the library's data sets from JSON configs, and caches them.

Runs in a worker process: only workers import the library.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from ludus.envs.reasoning_gym.patches import fix_entry, is_unfixable

RESEEDABLE = frozenset(
    (
        "arc_agi",
        "base_conversion",
        "caesar_cipher",
        "codeio",
        "emoji_mystery",
        "figlet_font",
        "group_anagrams",
        "letter_counting",
        "letter_jumble",
        "n_queens",
        "rush_hour",
        "sentence_reordering",
        "spell_backward",
        "word_ladder",
        "word_sequence_reversal",
        "word_sorting",
    )
)
"""Data sets that take milliseconds to build, load the same files for every seed, and use the seed
only when a question is generated: one object serves all seeds."""

ACRE_SIZE = 10
"""`acre` generates all questions when it is built; ten is the smallest size that it supports."""

MAX_REDRAWS = 100
REDRAW_SEED_STRIDE = 100_000_000
"""A question without a correct answer is drawn again at most `MAX_REDRAWS` times, each time with a
seed that is larger by `REDRAW_SEED_STRIDE`."""

BETTER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    # Otherwise seven in ten answers are "Yes".
    "syllogism": {"invalid_ratio": 0.5},
}
"""Defaults that replace those of the library where one constant answers most questions."""

DEFAULT_COMPOSITE = ("chain_sum", "letter_counting", "spell_backward")
"""The data sets of `composite` by default."""


class ConfigRefused(Exception):
    """The library rejects a config; `fields` are the names of the config's fields."""

    def __init__(self, error: Exception, fields: Iterable[str]) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.fields = sorted(fields)


def build_entry(
    name: str, config: dict[str, Any], *, seed: int, size: int, index: int
) -> dict[str, Any]:
    """The library's record of a question, with fixes, redrawn until its answer scores 1.0."""
    if name == "acre":
        seed, index = seed + index, 0
    for draw_seed in range(seed, seed + MAX_REDRAWS * REDRAW_SEED_STRIDE, REDRAW_SEED_STRIDE):
        dataset = build_dataset(name, config, seed=draw_seed, size=size)
        seed_global_rngs(draw_seed + index)
        try:
            entry: dict[str, Any] = dataset[index]
            fix_entry(entry)
            if not is_unfixable(entry, dataset):
                break
        except Exception as error:
            raise ConfigRefused(error, config_fields(name)) from error
    return entry


def build_dataset(name: str, config: dict[str, Any], *, seed: int, size: int) -> Any:
    """Build a data set, or take it from the cache; raises `ConfigRefused`."""
    shared = name in RESEEDABLE
    size = ACRE_SIZE if name == "acre" else size
    seed_global_rngs(seed)
    dataset = _create_dataset(name, json.dumps(config), None if shared else seed, size)
    if shared:
        dataset.seed = dataset.config.seed = seed
    return dataset


def config_fields(name: str) -> dict[str, Any]:
    """The fields of a data set's config, with their defaults."""
    from reasoning_gym.factory import DATASETS

    _, config = DATASETS[name]
    return {
        field.name: field.default
        if field.default_factory is dataclasses.MISSING
        else field.default_factory()
        for field in dataclasses.fields(config)
        if field.name not in ("seed", "size")
    }


def seed_global_rngs(seed: int) -> None:
    """Seed the global random number generators, which some data sets use."""
    import numpy

    random.seed(seed)
    numpy.random.seed(seed % 2**32)


@lru_cache(maxsize=32)
def _create_dataset(name: str, config: str, seed: int | None, size: int) -> Any:
    from reasoning_gym.factory import create_dataset

    try:
        arguments = {**_restore_types(name, json.loads(config)), "seed": seed, "size": size}
        return create_dataset(name, **arguments)
    except Exception as error:
        raise ConfigRefused(error, config_fields(name)) from error


def _restore_types(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Convert a config to types that JSON does not have, by the types of the defaults."""
    if name == "composite":
        return {**config, "datasets": _dataset_specs(config.get("datasets") or DEFAULT_COMPOSITE)}
    defaults = config_fields(name)
    config = {**BETTER_DEFAULTS.get(name, {}), **config}
    return {field: _cast_like(defaults.get(field), value) for field, value in config.items()}


def _dataset_specs(parts: Iterable[Any]) -> list[Any]:
    """The data sets of a composite; an item may be a name."""
    from reasoning_gym.composite import DatasetSpec

    specs = []
    for part in parts:
        spec = {"weight": 1.0, "config": {}, **({"name": part} if isinstance(part, str) else part)}
        specs.append(
            DatasetSpec(**{**spec, "config": _restore_types(spec["name"], spec["config"])})
        )
    return specs


def _cast_like(default: Any, value: Any) -> Any:
    if isinstance(default, datetime.date | datetime.time) and isinstance(value, str):
        return type(default).fromisoformat(value)
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    if (
        dataclasses.is_dataclass(default)
        and not isinstance(default, type)
        and isinstance(value, dict)
    ):
        return dataclasses.replace(default, **value)
    return value
