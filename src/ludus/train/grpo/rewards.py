"""The reward of an episode: the environment's own, plus the user's reward functions.

    def brief(episode):
        return -0.01 * len(episode.messages)

A reward function takes an episode and returns a number, or None where it does not apply; it may be
async. The summed parts are in the episode's `rewards`, each under its name.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ludus.data.episode import Episode
from ludus.environment.error_mapping import is_author_error
from ludus.errors import ConfigError, RunError

MAX_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A user's function with its weight in the sum."""

    name: str
    weight: float
    function: Callable[[Episode], Any]

    async def score(self, episode: Episode) -> float | None:
        try:
            if inspect.iscoroutinefunction(self.function):
                value = await self.function(episode)
            else:
                # In a thread: it may compute for long or block on the network.
                value = await asyncio.to_thread(self.function, episode)
            if inspect.isawaitable(value):
                value = await value
        except BaseException as error:
            if not is_author_error(error):
                raise
            text = " ".join(str(error).split())[:MAX_ERROR_CHARS]
            raise RunError(
                f"The reward function {self.name} failed: {type(error).__name__}: {text}"
            ) from error
        if value is None:
            return None
        number = math.nan
        # Scalars of Python, NumPy and PyTorch; nothing else, also no strings.
        if hasattr(value, "__float__") and not getattr(value, "ndim", 0) > 0:
            with suppress(TypeError, ValueError, OverflowError, RuntimeError):
                number = float(value)
        if not math.isfinite(number):
            raise RunError(
                f"The reward function {self.name} must return a finite number or None, "
                f"got {value!r}."
            )
        return number


@dataclass(frozen=True, slots=True)
class RewardFunctions:
    """All reward functions of a run besides the environments' own rewards."""

    functions: tuple[RewardFunction, ...] = ()

    def weights(self, environments: Sequence[str]) -> dict[str, float]:
        """Weights by name: 1 for every environment, and those of the functions."""
        weights = dict.fromkeys(environments, 1.0)
        for function in self.functions:
            if function.name in weights:
                raise ConfigError(
                    f"The reward function {function.name} has the name of an environment, so that "
                    "their rewards could not be told apart. Rename the function."
                )
        return weights | {function.name: function.weight for function in self.functions}

    async def score(self, episode: Episode) -> Episode:
        """The episode with its total reward. Episodes that a fault ended stay unscored."""
        if not self.functions or episode.broken:
            return episode
        scores = await asyncio.gather(*(each.score(episode) for each in self.functions))
        parts: dict[str, float] = {}
        total = 0.0
        for function, value in zip(self.functions, scores, strict=True):
            if value is not None:
                parts[function.name] = value
                total += value * function.weight
        if episode.reward is not None:
            parts[episode.environment] = episode.reward
            total += episode.reward
        # The parts that the environment reported itself are already in its reward. Those that have
        # the name of a summed part get the environment's name as a prefix: otherwise they would
        # stand in for a function that returned None.
        summed = self._summed_names(episode)
        own_parts = {
            f"{episode.environment}/{name}" if name in summed else name: value
            for name, value in episode.rewards.items()
        }
        rewards = {**own_parts, **parts}
        update = {"reward": total if parts else None, "rewards": rewards}
        return episode.model_copy(update=update)

    def parts(self, episode: Episode) -> dict[str, float]:
        """The summed parts by name; empty for an episode without a reward."""
        if episode.reward is None:
            return {}
        if not self.functions:
            return {episode.environment: episode.reward}
        summed = self._summed_names(episode)
        return {name: value for name, value in episode.rewards.items() if name in summed}

    def _summed_names(self, episode: Episode) -> set[str]:
        return {episode.environment, *(function.name for function in self.functions)}


def build_reward_funcs(weights: Mapping[str, float]) -> list[Callable[..., list[float | None]]]:
    """TRL's `reward_funcs`: for each name, a function that looks up the part scored before."""

    def build(name: str) -> Callable[..., list[float | None]]:
        def reward_func(scores: Sequence[Mapping[str, float]], **_: Any) -> list[float | None]:
            return [parts.get(name) for parts in scores]

        reward_func.__name__ = name
        return reward_func

    return [build(name) for name in weights]


def sum_rewards(rewards: Any, weights: Any) -> Any:
    """Weighted sums of rewards of shape (rows, functions), as (rows, 1); NaN for unscored rows."""
    scored = ~rewards.isnan().all(1)
    return (rewards * weights).nansum(1).where(scored, float("nan")).unsqueeze(1)


def import_reward_functions(specs: Sequence[str]) -> RewardFunctions:
    """Import reward functions, given as `module:function` or `module:function=0.5`.

    Functions are named by the function's name, and by module and function where two names clash.
    """
    functions = [_import_reward_function(spec) for spec in specs]
    paths = [function.name for function in functions]
    duplicate = next((path for path in paths if paths.count(path) > 1), None)
    if duplicate is not None:
        raise ConfigError(f"`reward_funcs` has {duplicate} twice. Give it once, with its weight.")
    names = [path.rpartition(":")[2] for path in paths]
    return RewardFunctions(
        tuple(
            replace(function, name=name) if names.count(name) == 1 else function
            for function, name in zip(functions, names, strict=True)
        )
    )


def _import_reward_function(text: str) -> RewardFunction:
    """Import one reward function, named by its whole path."""
    path, equals, number = text.partition("=")
    module, colon, name = path.strip().partition(":")
    if not (module and colon and name):
        raise ConfigError(f"`reward_funcs`: {text!r} is not of the form module:function.")
    try:
        weight = float(number) if equals else 1.0
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise ConfigError(f"`reward_funcs`: the weight in {text!r} is not a finite number.")
    # Like `python -m`: modules in the working directory can be imported.
    if (cwd := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, cwd)
    try:
        function = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"`reward_funcs`: cannot import {module}: {error}.") from error
    except AttributeError as error:
        raise ConfigError(f"`reward_funcs`: {module} has no function {name}.") from error
    if not callable(function):
        raise ConfigError(f"`reward_funcs`: {module}:{name} is not callable.")
    return RewardFunction(f"{module}:{name}", weight, function)
