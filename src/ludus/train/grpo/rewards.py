"""Rewards as TRL takes them: the parts that `ludus.scoring.reward_functions` has scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


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
