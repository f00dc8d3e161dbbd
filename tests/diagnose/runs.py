"""Synthetic GRPO runs: random episodes with a fixed seed, and the log that they give."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from ludus.data.episode import Episode, StopReason, Tokens, Usage
from ludus.data.messages import Message
from ludus.diagnose.episode_stats import EpisodeStats, RunEpisodes, group_episode_stats

_SHARES = ("format", "done", "cut_off")
"""Metrics without noise, which could exceed 1."""
Curve = Callable[[float], float]
"""The value of a metric as a function of the progress of the run, from 0 to 1."""


def level(value: float) -> Curve:
    return lambda at: value


def ramp(*points: tuple[float, float]) -> Curve:
    """Interpolate linearly between points."""

    def at(place: float) -> float:
        for (x, y), (next_x, next_y) in pairwise(points):
            if place <= next_x:
                return y + (next_y - y) * max(0.0, place - x) / (next_x - x)
        return points[-1][1]

    return at


@dataclass
class Sample:
    """A synthetic run: success rates, and other metrics of the log."""

    success: Mapping[str, Curve] = field(
        default_factory=lambda: {"wordle": ramp((0.0, 0.25), (0.8, 0.75), (1.0, 0.8))}
    )
    """Success rate by environment."""
    steps: int = 150
    groups: int = 8
    size: int = 8
    luck: float = 0.15
    """Largest deviation of a task's success rate."""
    worth: tuple[float, float] = (0.0, 1.0)
    """Rewards of failure and success."""
    figures: Mapping[str, Curve] = field(default_factory=dict)
    """Overrides of the log's other metrics."""
    faults: float = 0.0
    seed: int = 0

    def draw(self) -> tuple[list[dict[str, Any]], list[EpisodeStats]]:
        """Return its log and its episodes."""
        # Two generators, so that the log's noise does not affect the episodes.
        rng, noise = random.Random(self.seed), random.Random(self.seed)
        log, episodes = list[dict[str, Any]](), list[EpisodeStats]()
        for step in range(1, self.steps + 1):
            step_episodes = self._step(step, rng)
            episodes += step_episodes
            log.append(self._line(step, step_episodes, noise))
        return log, episodes

    def read(self) -> tuple[list[dict[str, Any]], RunEpisodes]:
        log, episodes = self.draw()
        return log, group_episode_stats(episodes)

    def _step(self, step: int, rng: random.Random) -> list[EpisodeStats]:
        names, progress = list(self.success), (step - 1) / max(1, self.steps - 1)
        episodes = []
        for number in range(self.groups):
            name = names[number % len(names)]
            success_rate = self.success[name](progress) + rng.uniform(-self.luck, self.luck)
            index = (step - 1) * self.groups + number
            episodes += [
                self._attempt(step, index * self.size + member, name, index, success_rate, rng)
                for member in range(self.size)
            ]
        return episodes

    def _attempt(
        self, step: int, index: int, name: str, group: int, success_rate: float, rng: random.Random
    ) -> EpisodeStats:
        reward = self.worth[rng.random() < success_rate]
        broken = rng.random() < self.faults
        reason = StopReason.BROKEN if broken else StopReason.DONE
        scored = None if broken else reward
        return EpisodeStats(
            f"1a2b3c4d-{index:06d}", step, name, f"{group:016x}", reason.value,
            scored,
        )  # fmt: skip

    def _line(
        self, step: int, episodes: Sequence[EpisodeStats], noise: random.Random
    ) -> dict[str, Any]:
        at = (step - 1) / max(1, self.steps - 1)
        rewards = [one.reward for one in episodes if one.reward is not None]
        equal = _equal(episodes)
        defaults: dict[str, Curve] = {
            "loss": level(0.01),
            "grad_norm": level(0.02 + 0.6 * (1 - equal)),
            "entropy": ramp((0.0, 0.6), (1.0, 0.3)),
            "format": level(0.97),
            "done": level(0.95),
            "cut_off": level(0.03),
            "length": level(60.0),
            "turns": level(3.0),
            **{f"time/{key}": level(0.2) for key in ("rollout", "model", "environment", "train")},
            "time/step": level(0.5),
        }
        line: dict[str, Any] = {
            key: curve(at) if key in _SHARES else curve(at) * noise.uniform(0.9, 1.1)
            for key, curve in (defaults | dict(self.figures)).items()
        }
        if rewards:
            line |= {"reward": fmean(rewards), "reward_std": pstdev(rewards)}
        line |= {"step": step, "zero_variance": equal, "trained": 1 - equal, "learning_rate": 1e-6}
        line["unscored"] = 1 - len(rewards) / len(episodes)
        return line | _by_environment(episodes)


def _by_environment(episodes: Iterable[EpisodeStats]) -> dict[str, float]:
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for one in episodes:
        if one.reward is not None:
            rewards[one.environment].append(one.reward)
    return {f"rewards/{name}/mean": fmean(values) for name, values in rewards.items()}


def _equal(episodes: Iterable[EpisodeStats]) -> float:
    groups: defaultdict[str, set[float | None]] = defaultdict(set)
    for one in episodes:
        groups[one.task].add(one.reward)
    return fmean(len(rewards - {None}) < 2 for rewards in groups.values())


def episode(one: EpisodeStats, **changes: Any) -> Episode:
    """Return the episode as a run stores it."""
    fields: dict[str, Any] = {
        "episode_id": one.episode_id,
        "stop_reason": StopReason(one.stop_reason),
        "reward": one.reward,
        "usage": Usage(completion_tokens=one.sampled_tokens),
        "error": one.fault,
        "environment": one.environment,
        "group_id": one.task,
        "agent": {"provider": "hf", "model": "student", "step": one.step},
        "messages": (Message(role="user", content="Guess."),),
        "tokens": Tokens(ids=(1, 2, 3), logprobs=(None, -0.1, -0.2), mask=(0, 1, 1)),
    }
    return Episode(**fields | changes)


def write(sample: Sample, folder: Path, **about: Any) -> Path:
    """Write the folder of such a run."""
    lines, attempts = sample.draw()
    folder.mkdir()
    record = {
        "version": 1,
        "kind": "grpo",
        "model": "models/student",
        "environment": {"spec": ",".join(sample.success)},
        "settings": {"steps": sample.steps},
        "metrics": {"steps": sample.steps},
    }
    (folder / "training.json").write_text(json.dumps(record | about))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "episodes.jsonl").write_bytes(b"".join(episode(one).to_line() for one in attempts))
    return folder
