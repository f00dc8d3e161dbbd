"""Reward functions that tests name by their path."""

from __future__ import annotations

import asyncio
import math
import sys
from typing import Any

from ludus import Episode, Rubric, RubricPart

HERE = "scoring.reward_samples"


def brief(episode: Episode) -> float:
    return -float(episode.turns)


async def climbing(episode: Episode) -> float | None:
    return 0.5 if "Climb" in episode.environment else None


def broken(episode: Episode) -> float:
    raise KeyError("nothing there")


def leaving(episode: Episode) -> float:
    sys.exit("enough")


async def leaving_later(episode: Episode) -> float:
    await asyncio.sleep(0)
    sys.exit("enough")


def endless(episode: Episode) -> float:
    return math.inf


class AsyncJudge:
    """A callable object whose call is a coroutine."""

    async def __call__(self, episode: Episode) -> float:
        await asyncio.sleep(0)
        return 0.25


judge = AsyncJudge()
RETURNED: list[Any] = []


def returning(episode: Episode) -> Any:
    return RETURNED[-1]


quality = Rubric(
    RubricPart("solved", lambda episode: episode.reward, weight=0.5),
    RubricPart("fast", weight=0.5),
    RubricPart("calm", lambda episode: episode.turns <= 3, gate=1.0),
)
large = Rubric(
    RubricPart("size", weight=0.5),
    RubricPart("enough", lambda episode: episode.rewards["size"], gate=0.5),
)


def trl_length(completions: Any, bonus: Any, **kwargs: Any) -> list[float]:
    assert [message["role"] for message in kwargs["prompts"][0]] == ["user"]
    return [len(each[0]["content"]) + more for each, more in zip(completions, bonus, strict=True)]


async def trl_async(completions: Any, bonus: Any) -> list[float]:
    return [len(each[0]["content"]) + more for each, more in zip(completions, bonus, strict=True)]


def trl_number(completions: Any) -> float:
    return 1.0
