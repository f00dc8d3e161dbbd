"""Environments by name. Packages register theirs under the entry point `ludus.environments`.

    name                  reasoning_gym
    name:variant          reasoning_gym:chain_sum
    package.module:Class  my_package.maze:Maze      (importable, or below the current folder)

A URL is a spec too, but not one that this module can build: see `ludus.client`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from ludus.environment.contract import Contract
from ludus.environment.inspection import contract_of
from ludus.errors import BadEnvironment, EnvironmentNotFound, LudusError, did_you_mean

GROUP = "ludus.environments"


def is_url(spec: str) -> bool:
    return spec.startswith(("http://", "https://", "ws://", "wss://"))


def registered() -> Mapping[str, EntryPoint]:
    """Everything that installed packages offer, by name, without importing it."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda p: p.name)}


def find(spec: str) -> Contract:
    """The contract behind a name, a variant or an import path."""
    name, _, rest = spec.partition(":")
    offered = registered()
    if name in offered:
        return _variant(name, _loaded(offered[name]), rest or None)
    if rest:
        return contract_of(_imported(spec, name, rest))
    hint = did_you_mean(name, offered, "See `ludus envs`, or give module:Class or a URL.")
    raise EnvironmentNotFound(f"No environment named {name!r} is installed. {hint}")


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except LudusError:
        raise
    except Exception as error:
        raise BadEnvironment(
            f"{point.name!r} ({point.value}) cannot be loaded: {error!r}"
        ) from error


def _variant(name: str, cls: Any, variant: str | None) -> Contract:
    if variant is None:
        return contract_of(cls, name=name)
    known = list(cls.variants()) if hasattr(cls, "variants") else []
    if variant not in known and variant == getattr(cls, "__name__", None):
        # The package is named like its environment: this is module:Class.
        return contract_of(cls, name=name)
    if variant not in known:
        hint = did_you_mean(variant, known, f"See `ludus envs {name}`.")
        raise EnvironmentNotFound(f"{name!r} has no variant {variant!r}. {hint}")
    return contract_of(cls, name=name, variant=variant)


def _imported(spec: str, module: str, attribute: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not module.startswith(error.name):
            raise BadEnvironment(f"{module} cannot be imported: {error}") from error
        hint = did_you_mean(module, registered(), "See `ludus envs`.")
        raise EnvironmentNotFound(
            f"{spec!r} is neither a registered environment nor an importable class. {hint}"
        ) from None
    except Exception as error:
        raise BadEnvironment(f"{module} cannot be imported: {error!r}") from error
    try:
        return getattr(found, attribute)
    except AttributeError:
        hint = did_you_mean(attribute, vars(found))
        raise EnvironmentNotFound(f"Module {module!r} has no {attribute!r}. {hint}") from None
