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
from ludus.data.reward_variance import is_zero_variance
from ludus.errors import RunError
from ludus.rollout.circuit_breaker import FATAL_FAULTS, PERMANENT_FAULTS
from ludus.rollout.plan import Plan
from ludus.rollout.progress import PhaseProgress
from ludus.train.distributed import Distributed
from ludus.train.grpo.groups import SeedCheck, prompt_digest, split_into_groups
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.policy_agent import TrainingPolicyAgent
from ludus.train.grpo.rewards import RewardFunctions
from ludus.train.grpo.rollout_worker import RolloutWorker
from ludus.train.grpo.step_metrics import decode_metrics, episode_metrics, pre_resampling_metrics
from ludus.train.grpo.task_dataset import parse_task_numbers, spare_task_number

EpisodeSink = Callable[[Sequence[Episode]], None]
MAX_FAILED_STEPS = 3
"""Steps in a row that are more than bad luck."""


@dataclass(slots=True)
class GroupRollouts:
    """TRL's `rollout_func`."""

    worker: RolloutWorker
    plan: Plan
    config: GRPOConfig
    rewards: RewardFunctions
    world: Distributed
    write_episodes: EpisodeSink
    """Given every episode that was played, in the first process."""
    check_seeds: SeedCheck = field(default_factory=SeedCheck)
    episodes: list[Episode] = field(default_factory=list)
    """This process's part of the newest step, in the order in which it was asked for."""
    failed_steps: int = 0
    """Steps in a row in which nothing could be played."""
    any_succeeded: bool = False
    """Whether anything ever could."""

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        began = perf_counter()
        step, learner = trainer.state.global_step + 1, self.worker.agent
        assert isinstance(learner, TrainingPolicyAgent)
        learner.step, before = step, learner.decode_stats
        model = trainer.model
        training = model.training
        model.eval()
        try:
            self.worker.run(learner.renewed())
            found = self._play_step(parse_task_numbers(prompts), step)
        finally:
            model.train(training)
        self.worker.phase(PhaseProgress("Training"))
        found |= decode_metrics(before, learner.decode_stats) | {
            "time/rollout": perf_counter() - began
        }
        metrics = trainer._metrics["train" if training else "eval"]
        for name, value in found.items():
            metrics[name].append(value)
        scores = [self.rewards.parts(episode) for episode in self.episodes]
        return {
            **to_trl_batch(self.episodes, trainer.processing_class.pad_token_id),
            "scores": scores,
        }

    def _play_step(self, numbers: Sequence[int], step: int) -> dict[str, float]:
        size, first = self.config.group_size, self.world.rank * len(numbers)
        members = [(first + place) % size for place in range(len(numbers))]
        indices = [number * size + member for number, member in zip(numbers, members, strict=True)]
        self.episodes = self._play_episodes(indices, f"Playing step {step:,}")
        everybodys = self.world.all_gather(self.episodes)
        self._check_failures(everybodys)
        (equal, unseeded), found = self._find_zero_variance(), episode_metrics(everybodys)
        if self.config.equal == "resample":
            found |= pre_resampling_metrics(everybodys)
            found["resampled"] = float(self._resample(equal, members, step))
        return found | unseeded | {"equal": sum(equal) / len(equal)}

    def _play_episodes(self, indices: Sequence[int], phase: str) -> list[Episode]:
        # What fails in one process is everybody's end, and is told by the first.
        with self.world.raise_on_all_ranks():
            episodes = self.worker.play(self.plan, indices, phase)
        everybodys = self.world.all_gather(episodes)
        with self.world.raise_on_all_ranks():
            if self.world.is_main:
                self.write_episodes(everybodys)
        return episodes

    def _check_failures(self, episodes: Sequence[Episode]) -> None:
        """Nothing can be learned where nothing works; but one task may just be a bad one."""
        faults = [episode.error for episode in episodes if episode.error is not None]
        for fault in faults:
            if fault.kind in FATAL_FAULTS:
                raise RunError(fault.message)
        if len(faults) < len(episodes):
            self.failed_steps, self.any_succeeded = 0, True
            return
        self.failed_steps += 1
        if self.failed_steps >= MAX_FAILED_STEPS or not self._may_be_task_specific(
            episodes, faults
        ):
            raise RunError(
                f"Not one of {len(episodes):,} episodes could be played: {faults[0].message} The "
                "same command goes on once that is mended."
            )

    def _may_be_task_specific(self, episodes: Sequence[Episode], faults: Sequence[Fault]) -> bool:
        """Whether it may lie in these tasks alone, so that others are worth a try."""
        tasks = {episode.group_id for episode in episodes}
        return len(tasks) == 1 or (
            self.any_succeeded and all(fault.kind in PERMANENT_FAULTS for fault in faults)
        )

    def _find_zero_variance(self) -> tuple[list[bool], dict[str, float]]:
        """For each group of the step, whether nothing can be learned from it; and what
        `check_seeds` found."""
        size = self.config.group_size
        facts = [(each.reward, prompt_digest(each), each.environment) for each in self.episodes]
        rewards, openings, names = zip(*self.world.all_gather(facts), strict=True)
        unseeded = self.check_seeds(openings, names, size)
        return [is_zero_variance(group) for group in split_into_groups(rewards, size)], unseeded

    def _resample(self, equal: Sequence[bool], members: Sequence[int], step: int) -> int:
        """Try other tasks in place of those groups; how many were found that teach something."""
        wanting = {group for group, flag in enumerate(equal) if flag}
        before = len(wanting)
        for round in range(self.config.resamples):
            if not wanting:
                break
            places = [place for place in range(len(members)) if self._group_index(place) in wanting]
            indices = [self._spare_index(place, members[place], step, round) for place in places]
            old = dict(zip(places, (self.episodes[place] for place in places), strict=True))
            phase = f"Playing other tasks for step {step:,}"
            for place, episode in zip(places, self._play_episodes(indices, phase), strict=True):
                self.episodes[place] = episode
            flags, _ = self._find_zero_variance()
            wanting = {group for group in wanting if flags[group]}
            for place in places:
                if self._group_index(place) in wanting:
                    self.episodes[place] = old[place]
        return before - len(wanting)

    def _group_index(self, place: int) -> int:
        """Which of the step's groups a place of this process belongs to."""
        return (self.world.rank * len(self.episodes) + place) // self.config.group_size

    def _spare_index(self, place: int, member: int, step: int, round: int) -> int:
        settings = self.config
        number = spare_task_number(
            step, round, self._group_index(place), groups=settings.groups, rounds=settings.resamples,
        )  # fmt: skip
        return number * settings.group_size + member


def to_trl_batch(episodes: Sequence[Episode], pad: int) -> dict[str, Any]:
    """Episodes as TRL takes them."""
    rows = [to_trl_row(episode, pad) for episode in episodes]
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


TRLRow = tuple[list[int], list[int], list[float], list[int]]


def to_trl_row(episode: Episode, pad: int) -> TRLRow:
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
