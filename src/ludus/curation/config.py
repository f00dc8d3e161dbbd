"""Configuration of `curate`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal

from ludus.data.config import check_field_types
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError
from ludus.options import Option, parse_range

OutputKind = Literal["sft", "dpo", "episodes", "openenv", "nemo-gym", "nemo-gym-input"]


@dataclass(frozen=True, kw_only=True)
class CurateConfig:
    """Which episodes to keep, and what to write of them."""

    to: Annotated[OutputKind, Option("Basics")] = "sft"
    """What to write: rows for SFT, pairs for DPO, or the files of another tool."""
    where: Annotated[str | None, Option("Selection", metavar="SQL")] = None
    """SQL condition over the fields of an episode."""
    min_reward: Annotated[float | None, Option("Selection")] = None
    """Minimum reward."""
    solve_rate: Annotated[
        tuple[float, float] | None, Option("Selection", metavar="LOW..HIGH", parse=parse_range)
    ] = None
    """Keep tasks whose fraction of solved attempts lies in this range: 0.1..0.9."""
    solved_at: Annotated[float, Option("Selection", hidden=True)] = 1.0
    """Minimum reward of a solved attempt."""
    top_fraction: Annotated[float | None, Option("Selection", advanced=True)] = None
    """Keep this fraction of each environment's episodes, the best ones: 0.25."""
    best_of_group: Annotated[bool, Option("Selection")] = False
    """Keep the best attempt at each task."""
    keep_unscored: Annotated[bool, Option("Selection", hidden=True)] = False
    """Keep episodes without a reward, unless a fault ended them."""
    dedupe: Annotated[bool | None, Option("Selection", default="for sft and dpo")] = None
    """Remove exact copies, of episodes or of pairs. Other programs count attempts, and get all of
    them."""
    held_out: Annotated[tuple[str | Path, ...], Option("Selection", advanced=True)] = ()
    """Run or data set whose tasks, and near copies of them, are removed; repeatable."""
    similarity_threshold: Annotated[float, Option("Selection", hidden=True)] = 0.8
    """Prompts at least this similar are near copies, for `test_size` and `held_out`."""
    pairs: Annotated[Literal["best", "all"], Option("Rows", advanced=True)] = "best"
    """DPO pairs: best against worst of each task, or all pairs."""
    min_margin: Annotated[float, Option("Rows", advanced=True)] = 0.1
    """Minimum reward difference between the sides of a DPO pair."""
    reasoning: Annotated[bool, Option("Rows")] = True
    """Keep the reasoning of assistant turns in rows for SFT and DPO."""
    test_size: Annotated[float | None, Option("Rows")] = None
    """Fraction of the tasks in the test split: 0.1, of 100 tasks 10."""
    seed: Annotated[int, Option("Rows", hidden=True)] = 0
    """Random seed of the test split."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.dedupe is None:
            object.__setattr__(self, "dedupe", self.is_for_training)
        if self.where is not None and not self.where.strip():
            raise ConfigError("`where` must be an SQL condition, got an empty string.")
        for name in ("min_reward", "solved_at"):
            reward = getattr(self, name)
            if reward is not None and not isfinite(reward):
                raise ConfigError(f"`{name}` must be a finite number, got {reward}.")
        if not (isfinite(self.min_margin) and self.min_margin >= 0):
            raise ConfigError(
                f"`min_margin` must be a finite number of at least 0, got {self.min_margin}."
            )
        if self.test_size is not None and not 0 < self.test_size < 1:
            raise ConfigError(f"`test_size` must be between 0 and 1, got {self.test_size}.")
        for name in ("top_fraction", "similarity_threshold"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise ConfigError(f"`{name}` must be above 0 and at most 1, got {share}.")
        if self.solve_rate is not None:
            low, high = self.solve_rate
            if not 0 <= low <= high <= 1:
                raise ConfigError(f"`solve_rate` must be a range within 0..1, got {low}..{high}.")
        if not self.is_for_training and not self.reasoning:
            raise ConfigError(f"`reasoning` requires `to` sft or dpo, got {self.to}.")
        if self.to == "dpo" and self.best_of_group:
            raise ConfigError("`best_of_group` keeps one attempt per task, but a pair needs two.")

    @property
    def is_for_training(self) -> bool:
        """Whether a chat template must be able to render the rows."""
        return self.to in ("sft", "dpo")

    def as_json(self) -> JsonObject:
        return {**asdict(self), "held_out": [str(path) for path in self.held_out]}
