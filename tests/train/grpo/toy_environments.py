"""Small environments, a tiny model that can call their tools, and a config for short runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

from policy.models import saved

from ludus import CollectConfig, Episode, ToolCall, ToolEnvironment, collect, episodes, sft, tool
from ludus.agents.scripted import RandomAgent
from ludus.train import GRPOConfig
from train.sample_rows import write_jsonl
from train.short_runs import train_config


class Pick(ToolEnvironment):
    """Pick a letter; c is rewarded."""

    def reset(self, *, seed: int | None = None) -> str:
        return f"Pick a letter ({(seed or 0) % 7})."

    @tool
    def pick(self, letter: Literal["a", "b", "c", "d", "e"]) -> str:
        """Pick a letter.

        Args:
            letter: The letter to pick.
        """
        return self.finish(self.reward_of(letter), "So be it.")

    def reward_of(self, letter: str) -> float:
        return float(letter == "c")

    def oracle(self) -> ToolCall:
        return ToolCall(name="pick", arguments={"letter": "c"})


class ManyPicks(Pick):
    """Has many tasks."""

    def reset(self, *, seed: int | None = None) -> str:
        return f"Pick a letter ({seed})."


class Flat(Pick):
    """Two of three tasks give the same reward for every letter."""

    def reset(self, *, seed: int | None = None) -> str:
        self.flat = bool((seed or 0) % 3)
        return super().reset(seed=seed)

    def reward_of(self, letter: str) -> float:
        return float(not self.flat and letter in "ab")


class FirstPick(Pick):
    """Picks until the episode is cut off; only the first one is rewarded, at once."""

    def reset(self, *, seed: int | None = None) -> str:
        self.picks: list[str] = []
        return super().reset(seed=seed)

    @tool
    def pick(self, letter: Literal["a", "b", "c", "d", "e"]) -> str:
        """Pick a letter.

        Args:
            letter: The letter to pick.
        """
        self.picks.append(letter)
        if len(self.picks) == 1:
            self.award(float(letter in "abc"))
        return super().reset(seed=0)


class MeasuredPicks(FirstPick):
    """Never rewarded, but the first letters of the alphabet are progress."""

    @tool
    def pick(self, letter: Literal["a", "b", "c", "d", "e"]) -> str:
        """Pick a letter.

        Args:
            letter: The letter to pick.
        """
        self.picks.append(letter)
        self.award(0.0)
        return f"Pick a letter ({len(self.picks)})."

    def progress(self) -> float:
        return sum(letter in "abc" for letter in self.picks) / 10


class Climb(ToolEnvironment):
    """Three turns; the reward is the share of turns with letter a or b."""

    def reset(self, *, seed: int | None = None) -> str:
        self.height = self.steps = 0
        return f"Climb ({(seed or 0) % 5})."

    @tool
    def climb(self, letter: Literal["a", "b", "c", "d", "e"]) -> str:
        """Climb.

        Args:
            letter: The direction to climb.
        """
        self.steps += 1
        self.height += letter in "ab"
        if self.steps == 3:
            return self.finish(self.height / 3, "The end.")
        return f"Height {self.height}."


class Levels(Pick):
    """Levels 1 and 2 reward some letters, level 0 every letter, and level 3 none."""

    REWARDED = ("abcde", "abc", "c", "")

    def reset(self, *, seed: int | None = None, level: int = 0) -> str:
        if level >= len(self.REWARDED):
            raise ValueError(f"There is no level {level}.")
        self.level = level
        return super().reset(seed=seed)

    def reward_of(self, letter: str) -> float:
        return float(letter in self.REWARDED[self.level])


PICK, MANY_PICKS, FLAT, CLIMB, FIRST_PICK, MEASURED_PICKS, LEVELS = (
    f"train.grpo.toy_environments:{name}"
    for name in ("Pick", "ManyPicks", "Flat", "Climb", "FirstPick", "MeasuredPicks", "Levels")
)


def train_tool_caller(folder: Path, *, environments: str = PICK, epochs: float = 12.0) -> Path:
    """A tiny model, fine-tuned on random tool calls: it writes calls with random arguments."""
    config = CollectConfig(agent=RandomAgent(), num_episodes=80)
    asyncio.run(collect(environments, folder / "run", config))
    rows = [_row(episode) for episode in read_episodes(folder / "run")]
    write_jsonl(folder / "data" / "train.jsonl", rows)
    base = saved(folder / "base")
    sft_config = train_config(epochs=epochs, batch_size=8, learning_rate=2e-2)
    sft(folder / "data", str(base), folder / "caller", sft_config)
    return folder / "caller"


def _row(episode: Episode) -> dict[str, Any]:
    messages = [json.loads(each.model_dump_json(exclude_none=True)) for each in episode.messages]
    last = max(at for at, message in enumerate(messages) if message["role"] == "assistant")
    return {"messages": messages[: last + 1], "tools": list(episode.tools)}


def read_episodes(out: Path) -> list[Episode]:
    """The episodes of a run."""
    return list(episodes(out / "episodes.jsonl"))


def small_config(**changes: Any) -> GRPOConfig:
    defaults: dict[str, Any] = {
        "steps": 2, "groups": 2, "group_size": 4, "max_episode_tokens": 64, "precision": "fp32",
        "device": "cpu", "learning_rate": 3e-3, "eval_every": 0,
    }  # fmt: skip
    return GRPOConfig(**{**defaults, **changes})
