"""The config of `rescore`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from ludus.data.config import check_field_types
from ludus.data.files import stable_hash
from ludus.data.tool_schema import JsonObject
from ludus.environment.rubric import EpisodeFunction, Rubric
from ludus.errors import ConfigError
from ludus.options import Option, parse_duration
from ludus.scoring.judge import Judge
from ludus.scoring.reward_functions import RewardFunction, RewardFunctions, import_reward_functions

JUDGE = "judge"
"""The name of the judge's score among the parts of a reward."""


@dataclass(frozen=True, kw_only=True)
class RescoreConfig:
    """How stored episodes are scored anew, and how fast."""

    rewards: Annotated[
        Sequence[str | Callable[..., object]],
        Option(name="reward", metavar="MODULE:FUNCTION[=WEIGHT]", combine=list),
    ] = ()
    """Reward functions and rubrics, or their paths: `module:function` or `module:function=0.5`.
    `environment` stands for the stored reward, which otherwise does not count."""
    judge: Judge | None = None
    judge_weight: Annotated[float, Option("Agent", hidden=True)] = 1.0
    """Weight of the judge's score, which is from 0 to 1."""
    concurrency: Annotated[int, Option("Limits", advanced=True)] = 64
    """Maximum number of episodes, or groups, that are scored at once."""
    max_time: Annotated[
        float | None,
        Option("Limits", hidden=True, metavar="TIME", default="no limit", parse=parse_duration),
    ] = None
    """Stop after this time from this start on: 90s, 10m or 2h."""
    resume: Annotated[bool, Option("Output", hidden=True)] = True
    """Resume the run in this folder, or start a new one beside it."""
    retry_broken: Annotated[bool, Option("Output", hidden=True)] = False
    """Score episodes again on which the judge failed in an earlier start."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.concurrency < 1:
            raise ConfigError(f"`concurrency` must be positive, got {self.concurrency}.")
        if not math.isfinite(self.judge_weight):
            raise ConfigError(f"`judge_weight` must be finite, got {self.judge_weight}.")

    def load_functions(self) -> RewardFunctions:
        """Import the reward functions."""
        paths = [reward for reward in self.rewards if isinstance(reward, str)]
        by_path = import_reward_functions(paths, environment_weight=0.0, argument="rewards")
        callables = [
            RewardFunction(_function_name(reward), 1.0, reward)
            for reward in self.rewards
            if not isinstance(reward, str)
        ]
        functions = (*by_path.functions, *callables)
        names = [*(function.name for function in functions), *([JUDGE] if self.judge else [])]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"Two of the rewards are named {name!r}. Rename one of them.")
        return RewardFunctions(functions, by_path.environment_weight)

    def identity(self, functions: RewardFunctions) -> JsonObject:
        """The settings that decide the rewards. A run is only continued if they are the same."""
        weights = {function.name: function.weight for function in functions.functions}
        settings: JsonObject = {
            "rewards": [
                reward if isinstance(reward, str) else _function_name(reward)
                for reward in self.rewards
            ],
            "weights": weights | {"environment": functions.environment_weight},
            "code": {each.name: _source_digest(each.function) for each in functions.functions},
        }
        if self.judge is not None:
            settings[JUDGE] = {**self.judge.describe(), "weight": self.judge_weight}
        return settings


def _source_digest(function: EpisodeFunction) -> str:
    """A digest of a function's source, or of a rubric's parts; empty if there is none."""
    source = _source(function)
    if isinstance(function, Rubric):
        source = repr(
            [
                (part.name, part.effective_weight, part.gate, part.cap, _source(part.function))
                for part in function.parts
            ]
        )
    return f"{stable_hash(source):016x}" if source else ""


def _source(function: EpisodeFunction | None) -> str:
    """The source of a function, or of the class of a callable object."""
    try:
        return inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        return ""


def _function_name(function: EpisodeFunction) -> str:
    return str(getattr(function, "__name__", type(function).__name__.lower()))
