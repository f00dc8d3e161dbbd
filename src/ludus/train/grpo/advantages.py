"""Credit by turn: the advantage of each reply instead of one for the whole episode. Pure functions.

A turn is credited with the return from it on: its own reward and the rewards of later turns.

If the environment has `progress()`, that is the critic V of generalized advantage estimation,
without discount:

    delta_t = r_t + V_(t+1) - V_t
    A_t = delta_t + gae_lambda * A_(t+1)

At the end of an episode V is 0, whatever ended it. So the deltas of an episode add up to its reward
minus `V_0`, which is the same for all attempts at a task: progress moves credit between turns, and
going back and forth earns nothing (potential-based shaping). With `gae_lambda` 1, `A_t` is the
return from turn t on minus `V_t`: progress is a baseline, and the rewards alone set the optimum.
With less, a turn is credited mostly with the progress soon after it: there is a learning signal
even if all attempts fail.

Without progress, and with a reward only in the last turn, all turns have the episode's advantage.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import fsum, sqrt
from statistics import fmean, variance
from typing import TypeVar

from ludus.data.episode import Episode
from ludus.data.interval_estimates import is_zero_variance
from ludus.data.messages import messages_before_reply
from ludus.errors import RunError

TurnValues = tuple[float, ...]
"""A number for each turn of an episode."""
_EPSILON = 1e-4
"""Added to deviations, as in TRL."""


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """How the reward of an episode is divided among its turns."""

    gae_lambda: float
    environment_weight: float = 1.0
    """Weight of the environment's rewards and progress; reward functions count to the last turn."""

    def returns(self, episode: Episode) -> TurnValues | None:
        """The return from each turn on, relative to progress; None for an unscored episode."""
        return self._returns(episode, episode.progress)

    def compared_returns(self, episode: Episode) -> TurnValues | None:
        """The returns that must differ within a group: otherwise it has no learning signal.

        As a mere baseline (`gae_lambda` 1), progress reduces noise and adds no signal.
        """
        return self._returns(episode, episode.progress if self.gae_lambda < 1 else ())

    def _returns(self, episode: Episode, progress: TurnValues) -> TurnValues | None:
        if episode.reward is None:
            return None
        rewards = [self.environment_weight * reward for reward in episode.turn_rewards]
        rewards = rewards or [0.0] * max(1, episode.turns)
        rewards[-1] += episode.reward - fsum(rewards)
        values = [self.environment_weight * value for value in progress[: len(rewards)]]
        values = values or [0.0] * len(rewards)
        decay = self.gae_lambda if progress else 1.0
        returns: list[float] = []
        later_return = next_value = 0.0
        for reward, value in zip(reversed(rewards), reversed(values), strict=True):
            later_return = reward + next_value - value + decay * later_return
            next_value = value
            returns.append(later_return)
        return tuple(reversed(returns))


def has_equal_returns(group: Sequence[TurnValues | None]) -> bool:
    """Whether a group has no learning signal: the returns from every turn on are all equal."""
    return all(is_zero_variance(column) for column in _columns(group))


def turn_advantages(
    returns: Sequence[TurnValues | None], group_size: int, scale: str = "batch"
) -> list[TurnValues]:
    """The advantages of the turns of each episode; empty for an unscored one.

    The baseline of a turn is the group's mean at the same turn, to which an episode that is already
    over contributes its last return. Advantages are divided by the deviation from it, over all
    turns of the group or of the batch (`scale`, as TRL's `scale_rewards`).
    """
    batch_divisor = {"none": 1.0, "batch": _deviation(returns)}.get(scale)
    advantages: list[TurnValues] = []
    for group in split_into_groups(returns, group_size):
        divisor = batch_divisor or _deviation(group)
        baselines = [fmean(column) for column in _columns(group)]
        for values in group:
            pairs = zip(values or (), baselines, strict=False)
            advantages.append(tuple((value - baseline) / divisor for value, baseline in pairs))
    return advantages


def _columns(returns: Sequence[TurnValues | None]) -> list[TurnValues]:
    """The returns of all scored episodes at each turn; an episode that is over keeps its last."""
    scored = [values for values in returns if values is not None]
    longest = max(map(len, scored), default=0)
    padded = (chain(values, [values[-1]] * (longest - len(values))) for values in scored)
    return list(zip(*padded, strict=True))


def _deviation(returns: Sequence[TurnValues | None]) -> float:
    """Root mean square over turns of the standard deviation at each turn."""
    columns = _columns(returns)
    if not columns or len(columns[0]) < 2:
        return _EPSILON
    return sqrt(fmean(variance(column) for column in columns)) + _EPSILON


Item = TypeVar("Item")


def split_into_groups(items: Sequence[Item], size: int) -> list[tuple[Item, ...]]:
    """Consecutive groups of `size` items."""
    return [tuple(items[at : at + size]) for at in range(0, len(items), size)]


@dataclass(slots=True)
class SeedCheck:
    """Checks that all members of a group got the same task.

    An environment that ignores its seed gives every member another task, and the comparison of
    their rewards means little. That is an error, or with `allow_unseeded` a warning given once.
    """

    allow_unseeded: bool = False
    warn: Callable[[str], None] = warnings.warn
    _warned: bool = False

    def __call__(self, groups: Sequence[Sequence[Episode]]) -> dict[str, float]:
        """Check the groups of a step, whose members must have the same prompt.

        Returns the metric `unseeded` (share of groups with different tasks) if that is allowed.
        """
        unseeded = []
        for group in groups:
            prompts = {messages_before_reply(episode.messages) for episode in group}
            # Members without a prompt failed before they saw their task.
            if len([each for each in prompts if any(m.role != "system" for m in each)]) > 1:
                unseeded.append(group[0].environment)
        if unseeded and not self.allow_unseeded:
            raise RunError(
                f"{unseeded[0]} shows different tasks for the same seed, so that attempts cannot "
                "be compared. Make its reset draw everything from the seed, or train on it anyway "
                "with `allow_unseeded`."
            )
        if unseeded and not self._warned:
            self._warned = True
            self.warn(
                f"{unseeded[0]} shows different tasks for the same seed: groups compare attempts "
                "at different tasks, so that advantages depend on the luck of the task"
            )
        share = len(unseeded) / len(groups)
        return {"unseeded": share} if self.allow_unseeded else {}
