"""Rubrics: a reward as a weighted sum of named parts, some of which are gates.

    QUALITY = Rubric(
        RubricPart("correct", weight=0.8),
        RubricPart("brief", weight=0.2),
        RubricPart("safe", gate=1.0),
    )

An environment scores an episode by values that it has computed:
`self.finish(QUALITY.score(correct=1.0, brief=0.5, safe=1.0), text)`. As a reward function, a rubric
scores a stored episode: each part by its own function, or from the part that the environment
reported under the same name.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ludus.errors import ConfigError, RunError, describe_in_one_line, did_you_mean

if TYPE_CHECKING:
    from ludus.data.episode import Episode

EpisodeFunction = Callable[["Episode"], object]
"""Returns a number, or None if there is no score; may be async."""


@dataclass(frozen=True, slots=True)
class Score:
    """A reward and its named parts."""

    reward: float | None
    """None: unscored."""
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RubricPart:
    """One criterion of a rubric."""

    name: str
    function: EpisodeFunction | None = None
    """Scores a stored episode; default: the part that the environment reported by this name."""
    weight: float | None = field(default=None, kw_only=True)
    """Default: 1, and 0 for a gate."""
    gate: float | None = field(default=None, kw_only=True)
    """A threshold: with a lower score of this part, the reward is at most `cap`."""
    cap: float = field(default=0.0, kw_only=True)

    @property
    def effective_weight(self) -> float:
        if self.weight is None:
            return 1.0 if self.gate is None else 0.0
        return self.weight


class Rubric:
    """A weighted sum of named parts; call it with an episode to score that.

    If a part has no score, the reward has none either: counting the part as 0 would punish an
    episode for what was not judged.
    """

    def __init__(self, *parts: RubricPart) -> None:
        names = [part.name for part in parts]
        if not parts:
            raise ConfigError("A rubric needs at least one part.")
        for part in parts:
            if names.count(part.name) > 1:
                raise ConfigError(f"The rubric has two parts named {part.name!r}.")
            for number in (part.effective_weight, part.cap, part.gate or 0.0):
                if not math.isfinite(number):
                    raise ConfigError(f"The numbers of part {part.name!r} must be finite.")
        if not any(part.effective_weight for part in parts):
            raise ConfigError("All parts of the rubric have weight 0, so every reward would be 0.")
        self.parts = parts

    def score(self, **values: float | None) -> Score:
        """The score for the values of all parts; None for a part without a score."""
        names = [part.name for part in self.parts]
        for name in values:
            if name not in names:
                hint = did_you_mean(name, names, f"Its parts: {', '.join(names)}.")
                raise ConfigError(f"The rubric has no part {name!r}. {hint}")
        if missing := [name for name in names if name not in values]:
            raise ConfigError(f"The rubric needs a value for {missing[0]!r}, or None.")
        scores = {name: to_score(value) for name, value in values.items()}
        scored = {name: value for name, value in scores.items() if value is not None}
        if len(scored) < len(scores):
            return Score(None, scored)
        reward = math.fsum(part.effective_weight * scored[part.name] for part in self.parts)
        for part in self.parts:
            if part.gate is not None and scored[part.name] < part.gate:
                reward = min(reward, part.cap)
        return Score(reward, scored)

    async def __call__(self, episode: Episode) -> Score:
        """The score of a stored episode."""
        values: dict[str, float | None] = {}
        for part in self.parts:
            if part.function is None:
                values[part.name] = episode.rewards.get(part.name)
                continue
            try:
                values[part.name] = to_score(await call_episode_function(part.function, episode))
            except Exception as error:
                message = f"part {part.name!r} of the rubric: {describe_in_one_line(error)}"
                raise RunError(message) from error
        return self.score(**values)


async def call_episode_function(function: EpisodeFunction, episode: Episode) -> object:
    """Call a function on an episode; a synchronous one runs in a thread, as it may block."""
    if inspect.iscoroutinefunction(function):
        return await function(episode)
    value = await asyncio.to_thread(function, episode)
    return await value if inspect.isawaitable(value) else value


def to_score(value: object) -> float | None:
    """Convert a scalar of Python, NumPy or PyTorch to a score; None stays None.

    Raises `ValueError` for anything else, including strings.
    """
    if value is None:
        return None
    number = math.nan
    if hasattr(value, "__float__") and not getattr(value, "ndim", 0) > 0:
        with suppress(TypeError, ValueError, OverflowError, RuntimeError):
            number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"must be a finite number or None, got {value!r}")
    return number
