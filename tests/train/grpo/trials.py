"""Something to try, and a tiny model that knows how to call but not what for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

from policy.models import saved

from ludus import CollectConfig, ToolCall, ToolEnvironment, collect, episodes, tool
from ludus.agents.random_agent import RandomAgent
from ludus.train import GRPOConfig, sft
from train.lessons import quick, write

LETTERS = "abcde"


class Pick(ToolEnvironment):
    """Pick a letter; one of them is worth something, and nobody says which."""

    def reset(self, *, seed: int | None = None) -> str:
        return f"Pick a letter ({(seed or 0) % 7})."

    @tool
    def pick(self, letter: Literal["a", "b", "c", "d", "e"]) -> str:
        """Pick a letter.

        Args:
            letter: The one that you pick.
        """
        return self.finish(self.worth(letter), "So be it.")

    def worth(self, letter: str) -> float:
        return float(letter == "c")

    def oracle(self) -> ToolCall:
        return ToolCall(name="pick", arguments={"letter": "c"})


class Flat(Pick):
    """In most tasks every letter is worth the same."""

    def reset(self, *, seed: int | None = None) -> str:
        self.flat = bool((seed or 0) % 3)
        return super().reset(seed=seed)

    def worth(self, letter: str) -> float:
        return float(not self.flat and letter in "ab")


class Climb(ToolEnvironment):
    """Three steps, each of which may go up or down."""

    def reset(self, *, seed: int | None = None) -> str:
        self.height = self.steps = 0
        return f"Climb ({(seed or 0) % 5})."

    @tool
    def climb(self, letter: Literal["a", "b", "c", "d", "e"]) -> str:
        """Climb.

        Args:
            letter: The way that you take.
        """
        self.steps += 1
        self.height += letter in "ab"
        if self.steps == 3:
            return self.finish(self.height / 3, "The end.")
        return f"Height {self.height}."


PICK, FLAT, CLIMB = (f"train.grpo.trials:{name}" for name in ("Pick", "Flat", "Climb"))


def caller(folder: Path, *, environments: str = PICK, epochs: float = 12.0) -> Path:
    """A tiny model that has learned from chance how calls are written."""
    config = CollectConfig(agent=RandomAgent(), num_episodes=80)
    asyncio.run(collect(environments, folder / "run", config))
    rows = [_row(episode) for episode in episodes(folder / "run" / "episodes.jsonl")]
    write(folder / "data" / "train.jsonl", rows)
    base = saved(folder / "base")
    settings = quick(epochs=epochs, batch_size=8, learning_rate=2e-2)
    sft(folder / "data", str(base), folder / "caller", settings)
    return folder / "caller"


def _row(episode: Any) -> dict[str, Any]:
    said = [json.loads(message.model_dump_json(exclude_none=True)) for message in episode.messages]
    ends = max(at for at, message in enumerate(said) if message["role"] == "assistant")
    return {"messages": said[: ends + 1], "tools": list(episode.tools)}


def tried(**more: Any) -> GRPOConfig:
    usual: dict[str, Any] = {
        "steps": 2, "groups": 2, "group_size": 4, "max_episode_tokens": 64, "precision": "fp32",
        "device": "cpu", "learning_rate": 3e-3,
    }  # fmt: skip
    return GRPOConfig(**{**usual, **more})
