"""The reward of an episode: the environment's own, plus the user's reward functions.

    def brief(episode):
        return -0.01 * len(episode.messages)

A reward function takes an episode and returns a number, a rubric's `Score`, or None if it does
not apply; it may be async. Functions for TRL's trainer, which take `completions`, work too. The
summed parts are in the episode's `rewards`, each under its name.
The parts of a rubric named `quality` are `quality/correct` and so on there, and not summed again.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ludus.data.episode import Episode
from ludus.data.messages import messages_before_reply
from ludus.environment.faults import is_author_error, log_fault
from ludus.environment.rubric import EpisodeFunction, Score, call_episode_function, to_score
from ludus.environment.source_file import import_user_module
from ludus.errors import ConfigError, RunError

MAX_ERROR_CHARS = 300
ENVIRONMENT = "environment"
"""The name of the environment's own reward among the specs of reward functions."""


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A user's function with its weight in the sum."""

    name: str
    weight: float
    function: EpisodeFunction

    async def score(self, episode: Episode) -> Score:
        try:
            value = await call_episode_function(self.function, episode)
        except BaseException as error:
            if not is_author_error(error):
                raise
            text = " ".join(str(error).split())[:MAX_ERROR_CHARS]
            raise RunError(
                f"The reward function {self.name} failed: {type(error).__name__}: {text}"
            ) from error
        if isinstance(value, Score):
            return value
        try:
            return Score(to_score(value))
        except ValueError as error:
            raise RunError(f"The value of reward function {self.name} {error}.") from error


@dataclass(frozen=True, slots=True)
class RewardFunctions:
    """All reward functions of a run besides the environments' own rewards."""

    functions: tuple[RewardFunction, ...] = ()
    environment_weight: float = 1.0
    """Weight of the environment's reward; with 0 it is recorded, but not counted."""

    def weights(self, environments: Sequence[str]) -> dict[str, float]:
        """Weights by name, of the environments (unless they count nothing) and the functions."""
        weights = {function.name: function.weight for function in self.functions}
        for environment in environments:
            if environment in weights:
                raise ConfigError(
                    f"The reward function {environment} has the name of an environment, so that "
                    "their rewards could not be told apart. Rename the function."
                )
        if not self.environment_weight:
            if not weights:
                raise ConfigError("The environment's weight is 0, and there is no other reward.")
            return weights
        return dict.fromkeys(environments, self.environment_weight) | weights

    async def score(self, episode: Episode) -> Episode:
        """The episode with its total reward. Episodes that a fault ended stay unscored."""
        if episode.broken or (not self.functions and self.environment_weight == 1):
            return episode
        self.weights([episode.environment])  # Raises if two rewards have one name.
        scores = await asyncio.gather(*(each.score(episode) for each in self.functions))
        parts: dict[str, float] = {}
        details: dict[str, float] = {}
        terms: list[float] = []
        for function, score in zip(self.functions, scores, strict=True):
            details |= {f"{function.name}/{name}": part for name, part in score.parts.items()}
            if score.reward is not None:
                parts[function.name] = score.reward
                terms.append(score.reward * function.weight)
        if episode.reward is not None:
            parts[episode.environment] = episode.reward
            if self.environment_weight:
                terms.append(episode.reward * self.environment_weight)
        # The parts that the environment reported itself are already in its reward. A part named
        # like a summed one gets the environment's name as a prefix: otherwise it would replace a
        # function that returned None.
        summed_names = {episode.environment, *(function.name for function in self.functions)}
        own_parts = {
            f"{episode.environment}/{name}" if name in summed_names else name: value
            for name, value in episode.rewards.items()
        }
        rewards = {**own_parts, **details, **parts}
        reward = sum(terms) if terms else None
        return episode.model_copy(update={"reward": reward, "rewards": rewards})

    def parts(self, episode: Episode) -> dict[str, float]:
        """The summed parts by name; empty for an episode without a reward."""
        if episode.reward is None:
            return {}
        if not self.functions and self.environment_weight == 1:
            return {episode.environment: episode.reward}
        names = self.weights([episode.environment])
        return {name: value for name, value in episode.rewards.items() if name in names}


def import_reward_functions(
    specs: Sequence[str], *, environment_weight: float = 1.0, argument: str = "reward_funcs"
) -> RewardFunctions:
    """Import reward functions, given as `module:function` or `module:function=0.5`.

    `environment=0.5` sets the weight of the environment's own reward, by default
    `environment_weight`. Functions are named by the function's name, and by module and function
    if two names clash. Errors name `argument`.
    """
    functions = []
    for spec in specs:
        path, equals, number = spec.partition("=")
        try:
            weight = float(number) if equals else 1.0
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight):
            raise ConfigError(f"`{argument}`: the weight in {spec!r} is not a finite number.")
        if (path := path.strip()) == ENVIRONMENT:
            environment_weight = weight
            continue
        module, colon, name = path.partition(":")
        if not (module and colon and name):
            raise ConfigError(f"`{argument}`: {path!r} is not of the form module:function.")
        try:
            imported = import_user_module(module)
        except Exception as error:
            reason = log_fault(error, module)
            raise ConfigError(f"`{argument}`: cannot import {module}: {reason}") from error
        function = getattr(imported, name, None)
        if function is None:
            raise ConfigError(f"`{argument}`: {module} has no function {name}.")
        if not callable(function):
            raise ConfigError(f"`{argument}`: {path} is not callable.")
        functions.append(RewardFunction(path, weight, _adapt_trl_function(function)))
    paths = [function.name for function in functions]
    duplicate = next((path for path in paths if paths.count(path) > 1), None)
    if duplicate is not None:
        raise ConfigError(f"`{argument}` has {duplicate} twice. Give it once, with its weight.")
    names = [path.rpartition(":")[2] for path in paths]
    return RewardFunctions(
        tuple(
            replace(function, name=name) if names.count(name) == 1 else function
            for function, name in zip(functions, names, strict=True)
        ),
        environment_weight,
    )


def _adapt_trl_function(function: Callable[..., object]) -> EpisodeFunction:
    """Call a function of TRL's GRPOTrainer, `f(completions, **kwargs)`, with one episode.

    It is given `prompts` and `completions` as messages, and the arguments of the task as columns,
    as far as its signature takes them. Other functions are returned as they are.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function
    if "completions" not in parameters:
        return function
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())

    @functools.wraps(function)
    async def score(episode: Episode) -> object:
        messages = [message.model_dump(mode="json") for message in episode.messages]
        first_reply = len(messages_before_reply(episode.messages))
        columns: dict[str, list[object]] = {
            **{name: [value] for name, value in episode.task.items()},
            "prompts": [messages[:first_reply]],
            "completions": [messages[first_reply:]],
        }
        given = {name: columns[name] for name in columns if takes_all or name in parameters}
        if inspect.iscoroutinefunction(function):
            values = await function(**given)
        else:
            # In a thread, because it may block.
            values = await asyncio.to_thread(function, **given)
        if not isinstance(values, Sequence) or len(values) != 1:
            raise TypeError(
                f"it must return a list with a reward for each completion, got {values!r}"
            )
        return values[0]

    return score
