"""A step's episodes: played all at once, compared in groups, and handed to TRL as ids and masks.

TRL calls it where it would generate. The model's tokens are those that it sampled; nothing is
tokenized again. What is learned from them is TRL's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ludus.data.episode import Episode, Fault
from ludus.errors import RunError
from ludus.rollout.breaker import FATAL_FAULTS, PERMANENT_FAULTS
from ludus.rollout.plan import Plan
from ludus.rollout.progress import PhaseProgress
from ludus.train.grpo.figures import asked_for, decoded, figures_of
from ludus.train.grpo.groups import SeedCheck, in_groups, is_equal, opening_of
from ludus.train.grpo.learner import Learner
from ludus.train.grpo.rewards import Rewards
from ludus.train.grpo.settings import GrpoSettings
from ludus.train.grpo.stage import Stage
from ludus.train.grpo.tasks import numbers_of, spare
from ludus.train.world import Distributed

Keep = Callable[[Sequence[Episode]], None]
SEVERAL = 3
"""Steps in a row that are more than bad luck."""


@dataclass(slots=True)
class Rollouts:
    """TRL's `rollout_func`."""

    stage: Stage
    plan: Plan
    config: GrpoSettings
    rewards: Rewards
    world: Distributed
    keep: Keep
    """Given every episode that was played, in the first process."""
    check_seeds: SeedCheck = field(default_factory=SeedCheck)
    played: list[Episode] = field(default_factory=list)
    """This process's part of the newest step, in the order in which it was asked for."""
    fruitless: int = 0
    """Steps in a row in which nothing could be played."""
    works: bool = False
    """Whether anything ever could."""

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        began = perf_counter()
        step, learner = trainer.state.global_step + 1, self.stage.agent
        assert isinstance(learner, Learner)
        learner.step, before = step, learner.tally
        model = trainer.model
        training = model.training
        model.eval()
        try:
            self.stage.run(learner.renewed())
            found = self._played(numbers_of(prompts), step)
        finally:
            model.train(training)
        self.stage.phase(PhaseProgress("Training"))
        found |= decoded(before, learner.tally) | {"time/rollout": perf_counter() - began}
        metrics = trainer._metrics["train" if training else "eval"]
        for name, value in found.items():
            metrics[name].append(value)
        scores = [self.rewards.parts(episode) for episode in self.played]
        return {**handed(self.played, trainer.processing_class.pad_token_id), "scores": scores}

    def _played(self, numbers: Sequence[int], step: int) -> dict[str, float]:
        size, first = self.config.group_size, self.world.rank * len(numbers)
        members = [(first + place) % size for place in range(len(numbers))]
        indices = [number * size + member for number, member in zip(numbers, members, strict=True)]
        self.played = self._play(indices, f"Playing step {step:,}")
        everybodys = self.world.all_gather(self.played)
        self._refuse_hopeless(everybodys)
        (equal, unseeded), found = self._equal(), figures_of(everybodys)
        if self.config.equal == "resample":
            found |= asked_for(everybodys)
            found["resampled"] = float(self._replaced(equal, members, step))
        return found | unseeded | {"equal": sum(equal) / len(equal)}

    def _play(self, indices: Sequence[int], phase: str) -> list[Episode]:
        # What fails in one process is everybody's end, and is told by the first.
        with self.world.raise_on_all_ranks():
            episodes = self.stage.play(self.plan, indices, phase)
        everybodys = self.world.all_gather(episodes)
        with self.world.raise_on_all_ranks():
            if self.world.is_main:
                self.keep(everybodys)
        return episodes

    def _refuse_hopeless(self, episodes: Sequence[Episode]) -> None:
        """Nothing can be learned where nothing works; but one task may just be a bad one."""
        faults = [episode.error for episode in episodes if episode.error is not None]
        for fault in faults:
            if fault.kind in FATAL_FAULTS:
                raise RunError(fault.message)
        if len(faults) < len(episodes):
            self.fruitless, self.works = 0, True
            return
        self.fruitless += 1
        if self.fruitless >= SEVERAL or not self._is_chance(episodes, faults):
            raise RunError(
                f"Not one of {len(episodes):,} episodes could be played: {faults[0].message} The "
                "same command goes on once that is mended."
            )

    def _is_chance(self, episodes: Sequence[Episode], faults: Sequence[Fault]) -> bool:
        """Whether it may lie in these tasks alone, so that others are worth a try."""
        tasks = {episode.group_id for episode in episodes}
        return len(tasks) == 1 or (
            self.works and all(fault.kind in PERMANENT_FAULTS for fault in faults)
        )

    def _equal(self) -> tuple[list[bool], dict[str, float]]:
        """For each group of the step, whether nothing can be learned from it; and what
        `check_seeds` found."""
        size = self.config.group_size
        facts = [(each.reward, opening_of(each), each.environment) for each in self.played]
        rewards, openings, names = zip(*self.world.all_gather(facts), strict=True)
        unseeded = self.check_seeds(openings, names, size)
        return [is_equal(group) for group in in_groups(rewards, size)], unseeded

    def _replaced(self, equal: Sequence[bool], members: Sequence[int], step: int) -> int:
        """Try other tasks in place of those groups; how many were found that teach something."""
        wanting = {group for group, flag in enumerate(equal) if flag}
        before = len(wanting)
        for round in range(self.config.resamples):
            if not wanting:
                break
            places = [place for place in range(len(members)) if self._group(place) in wanting]
            indices = [self._spare(place, members[place], step, round) for place in places]
            old = dict(zip(places, (self.played[place] for place in places), strict=True))
            phase = f"Playing other tasks for step {step:,}"
            for place, episode in zip(places, self._play(indices, phase), strict=True):
                self.played[place] = episode
            flags, _ = self._equal()
            wanting = {group for group in wanting if flags[group]}
            for place in places:
                if self._group(place) in wanting:
                    self.played[place] = old[place]
        return before - len(wanting)

    def _group(self, place: int) -> int:
        """Which of the step's groups a place of this process belongs to."""
        return (self.world.rank * len(self.played) + place) // self.config.group_size

    def _spare(self, place: int, member: int, step: int, round: int) -> int:
        settings = self.config
        number = spare(
            step, round, self._group(place), groups=settings.groups, rounds=settings.resamples,
        )  # fmt: skip
        return number * settings.group_size + member


def handed(episodes: Sequence[Episode], pad: int) -> dict[str, Any]:
    """Episodes as TRL takes them."""
    rows = [row_of(episode, pad) for episode in episodes]
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


Row = tuple[list[int], list[int], list[float], list[int]]


def row_of(episode: Episode, pad: int) -> Row:
    """Prompt, what came after it, its log-probabilities, and which of it the model said.

    An episode in which it said nothing has one token, of which nothing is learned.
    """
    tokens = episode.tokens
    if tokens is None or 1 not in tokens.mask:
        return [pad], [pad], [0.0], [0]
    first = tokens.mask.index(1)
    return (
        list(tokens.ids[:first]),
        list(tokens.ids[first:]),
        [each or 0.0 for each in tokens.logprobs[first:]],
        list(tokens.mask[first:]),
    )
