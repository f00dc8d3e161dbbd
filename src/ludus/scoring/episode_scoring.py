"""Scores episodes on workers, for a run on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ludus.data.episode_reader import episode_from_line
from ludus.rollout.block_work import BlockWork
from ludus.scoring.config import JUDGE
from ludus.scoring.reward_functions import RewardFunction, RewardFunctions


@dataclass(frozen=True, slots=True)
class EpisodeScoring(BlockWork):
    """Scores episodes; an item is the line of an episode, and the judge's score."""

    functions: RewardFunctions
    judge_weight: float | None
    """None without a judge."""

    async def run(self, item: Any) -> bytes:
        line, judge_score = item
        functions = self.functions.functions
        if self.judge_weight is not None:
            judge = RewardFunction(JUDGE, self.judge_weight, lambda episode: judge_score)
            functions = (*functions, judge)
        rewards = RewardFunctions(functions, self.functions.environment_weight)
        return (await rewards.score(episode_from_line(line))).to_line()
