"""What an episode is worth: the environment's own reward, and functions of the user's beside it.

    def brief(episode):
        return -0.01 * len(episode.messages)

A function takes an episode and gives a number, or None where it does not apply; it may be async.
What was summed is in the episode's `rewards`, each part by its own name.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ludus.data.episode import Episode
from ludus.environment.error_mapping import is_author_error
from ludus.errors import ConfigError, RunError


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """One function of the user's."""

    name: str
    weight: float
    function: Callable[[Episode], Any]

    async def score(self, episode: Episode) -> float | None:
        try:
            made = await self._call(episode)
        except BaseException as error:
            if not is_author_error(error):
                raise
            words = " ".join(str(error).split())[:300]
            raise RunError(
                f"The reward function {self.name} failed: {type(error).__name__}: {words}"
            ) from error
        if made is None:
            return None
        if (number := _to_finite_float(made)) is None:
            raise RunError(f"The reward function {self.name} gave {made!r}, which is no number.")
        return number

    async def _call(self, episode: Episode) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(episode)
        # It may think long, or ask somebody: the others go on meanwhile.
        made = await asyncio.to_thread(self.function, episode)
        return await made if inspect.isawaitable(made) else made


def _to_finite_float(made: Any) -> float | None:
    """What Python, NumPy and PyTorch call one number; a text is none, whatever it says."""
    if not hasattr(made, "__float__") or getattr(made, "ndim", 0) > 0:
        return None
    try:
        number = float(made)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class RewardFunctions:
    """All that an episode is worth."""

    functions: tuple[RewardFunction, ...] = ()

    def weights(self, environments: Sequence[str]) -> dict[str, float]:
        """By name: every environment counts as it rewards, functions by their weight."""
        named = dict.fromkeys(environments, 1.0)
        for reward in self.functions:
            if reward.name in named:
                raise ConfigError(
                    f"The reward function {reward.name} has the name of an environment that is "
                    "played, and their rewards could not be told apart. Give it another name."
                )
        return named | {reward.name: reward.weight for reward in self.functions}

    async def score(self, episode: Episode) -> Episode:
        """With the reward that is trained on. What a fault ended has none."""
        if not self.functions or episode.broken:
            return episode
        made = await asyncio.gather(*(reward.score(episode) for reward in self.functions))
        found = {each.name: value for each, value in zip(self.functions, made, strict=True)}
        parts = {name: value for name, value in found.items() if value is not None}
        if episode.reward is not None:
            parts[episode.environment] = episode.reward
        total = sum(value * self._weight(name) for name, value in parts.items()) if parts else None
        told = {**self._environment_parts(episode), **parts}
        return episode.model_copy(update={"reward": total, "rewards": told})

    def parts(self, episode: Episode) -> dict[str, float]:
        """The parts that are summed, by name; nothing for an episode without a score."""
        if episode.reward is None:
            return {}
        if not self.functions:
            return {episode.environment: episode.reward}
        summed = self._summed_names(episode)
        return {name: value for name, value in episode.rewards.items() if name in summed}

    def _environment_parts(self, episode: Episode) -> dict[str, float]:
        """The environment's own parts, which are in its reward already.

        One that is called like a part of the sum would be taken for it where that has none.
        """
        summed, environment = self._summed_names(episode), episode.environment
        return {
            f"{environment}/{name}" if name in summed else name: value
            for name, value in episode.rewards.items()
        }

    def _summed_names(self, episode: Episode) -> set[str]:
        """Of all that may be summed."""
        return {episode.environment, *(reward.name for reward in self.functions)}

    def _weight(self, name: str) -> float:
        return next((reward.weight for reward in self.functions if reward.name == name), 1.0)


def build_reward_funcs(weights: Mapping[str, float]) -> list[Callable[..., list[float | None]]]:
    """A function for TRL to each name, which looks up what was found out already."""
    return [_build_reward_func(name) for name in weights]


def _build_reward_func(name: str) -> Callable[..., list[float | None]]:
    def column(scores: Sequence[Mapping[str, float]], **_: Any) -> list[float | None]:
        return [parts.get(name) for parts in scores]

    column.__name__ = name
    return column


def parse_reward_functions(texts: Sequence[str]) -> RewardFunctions:
    """As they are written on a command line: `module:function`, or `module:function=0.5`.

    They are called by the function's name, and by the module's too where two have the same.
    """
    found = [_parse_reward_function(text) for text in texts]
    paths = [reward.name for reward in found]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise ConfigError(f"--reward {twice} is given twice. Give it once, with its weight.")
    names = [_function_name(path) for path in paths]
    return RewardFunctions(
        tuple(
            replace(reward, name=name) if names.count(name) == 1 else reward
            for reward, name in zip(found, names, strict=True)
        )
    )


def _function_name(path: str) -> str:
    return path.rpartition(":")[2]


def _parse_reward_function(text: str) -> RewardFunction:
    """Named by its whole path."""
    path, equals, number = text.partition("=")
    module, colon, name = path.strip().partition(":")
    if not (module and colon and name):
        raise ConfigError(f"--reward {text} names no function. Write module:function.")
    try:
        weight = float(number) if equals else 1.0
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise ConfigError(f"--reward {text}: {number!r} is no weight. Write a number.")
    return RewardFunction(f"{module}:{name}", weight, _import_function(text, module, name))


def _import_function(text: str, module: str, name: str) -> Callable[[Episode], Any]:
    # As `python -m` does it: what lies here can be named.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"--reward {text}: {module} cannot be imported: {error}.") from error
    except AttributeError as error:
        raise ConfigError(f"--reward {text}: {module} has no function {name}.") from error
    if not callable(function):
        raise ConfigError(f"--reward {text}: {name} is no function.")
    checked: Callable[[Episode], Any] = function
    return checked
