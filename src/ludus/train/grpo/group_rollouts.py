"""The rollouts of a step: episodes in groups, played concurrently, and their advantages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from time import perf_counter
from typing import TYPE_CHECKING

from ludus.data.episode import Episode
from ludus.errors import RunError
from ludus.rollout.loop import FATAL_FAULTS, PERMANENT_FAULTS
from ludus.rollout.plan import Plan
from ludus.rollout.progress import PhaseProgress
from ludus.scoring.reward_functions import RewardFunctions
from ludus.train.distributed import Distributed
from ludus.train.grpo.advantages import (
    SeedCheck,
    TurnCredit,
    TurnValues,
    group_prompt_digest,
    has_equal_returns,
    split_into_groups,
    turn_advantages,
)
from ludus.train.grpo.curriculum import Curriculum
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.policy_agent import TrainingPolicyAgent
from ludus.train.grpo.rollout_worker import RolloutWorker
from ludus.train.grpo.step_metrics import decode_metrics, episode_metrics, pre_resampling_metrics

if TYPE_CHECKING:
    from ludus.train.grpo.trainer import GRPOTrainer


import os
from pathlib import Path
from typing import Self

from ludus.data.journal import Journal

EpisodeSink = Callable[[Sequence[Episode]], None]
FIRST_SPARE_TASK = 1_000_000_000
"""The number of the first task that replaces another; above those of any run."""
MAX_FAILED_STEPS = 3
"""Consecutive steps without a single playable episode after which the run ends."""


@dataclass(slots=True)
class GroupRollouts:
    """Plays the episodes of a step.

    A slot is one of this process's episodes of a step; slots of all ranks, in order, form groups.
    """

    worker: RolloutWorker
    plan: Plan
    config: GRPOConfig
    rewards: RewardFunctions
    distributed: Distributed
    write_episodes: EpisodeSink
    """Called in the main process with all episodes that were played."""
    check_seeds: SeedCheck = field(default_factory=SeedCheck)
    curriculum: Curriculum | None = None
    """Draws the buckets of tasks, if there is one; `plan` asks it."""
    episodes: list[Episode] = field(default_factory=list)
    """This process's episodes of the current step, by slot."""
    failed_steps: int = 0
    """Consecutive steps in which no episode could be played."""
    any_succeeded: bool = False
    """Whether any episode of the run could be played."""

    def play(self, trainer: GRPOTrainer) -> list[Episode]:
        """Play the episodes of the next step; returns those of this process."""
        started = perf_counter()
        step, agent = trainer.state.global_step + 1, self.worker.agent
        assert isinstance(agent, TrainingPolicyAgent)
        agent.step, stats_before = step, agent.decode_stats
        trainer.model.eval()
        try:
            self.worker.run(agent.refresh_weights())
            slots = range(self.config.episodes // self.distributed.world_size)
            numbers = [(step - 1) * self.config.groups + self._group(slot) for slot in slots]
            if self.curriculum is not None:
                self.curriculum.start_step()
            self._draw_buckets(numbers, f"{step}")
            indices = [self._index(slot, number) for slot, number in enumerate(numbers)]
            self.episodes = self._play_episodes(indices, f"Playing step {step:,}")
            episodes = self.distributed.all_gather(self.episodes)
            self._check_failures(episodes)
            zero_variance, unseeded = self._find_zero_variance()
            metrics = episode_metrics(episodes)
            if self.config.zero_variance_groups == "resample":
                metrics |= pre_resampling_metrics(episodes)
                metrics["resampled"] = float(self._resample(zero_variance, step))
            if self.curriculum is not None:
                metrics |= self.curriculum.step_metrics()
        finally:
            trainer.model.train()
        self.worker.on_phase(PhaseProgress("Training"))
        metrics |= unseeded | {"zero_variance": fmean(zero_variance)}
        metrics |= self._reward_metrics()
        metrics |= decode_metrics(stats_before, agent.decode_stats)
        metrics["time/rollout"] = perf_counter() - started
        trainer.log_metrics(metrics)
        return self.episodes

    def advantages(self, scale: str) -> tuple[list[TurnValues], list[bool]]:
        """For this process's episodes: the advantages of their turns, or of the whole episode, and
        whether they are compared with others at all.

        Episodes of zero-variance groups, and those without a reward, have advantages of 0.
        """
        size = self.config.group_size
        returns = self.distributed.all_gather([*map(self._returns, self.episodes)])
        compared = self.distributed.all_gather([*map(self._compared_returns, self.episodes)])
        zero_variance = [has_equal_returns(group) for group in split_into_groups(compared, size)]
        first, count = self._global_slot(0), len(self.episodes)
        flags = [
            values is not None and not zero_variance[slot // size]
            for slot, values in enumerate(returns)
        ][first : first + count]
        values = turn_advantages(returns, size, scale)[first : first + count]
        # The mean of equal rewards may be rounded, and the rounding error divided by a deviation of
        # nearly 0 would be a large advantage made of noise.
        return [each if flag else () for each, flag in zip(values, flags, strict=True)], flags

    def _reward_metrics(self) -> dict[str, float]:
        """The reward and its parts, over the scored episodes of all processes."""
        episodes = self.distributed.all_gather(self.episodes)
        rewards = [each.reward for each in episodes if each.reward is not None]
        metrics = {"reward": fmean(rewards)} if rewards else {}
        if len(rewards) > 1:
            metrics["reward_std"] = stdev(rewards)
        parts: dict[str, list[float]] = {}
        for episode in episodes:
            for name, value in self.rewards.parts(episode).items():
                parts.setdefault(name, []).append(value)
        return metrics | {f"rewards/{name}/mean": fmean(each) for name, each in parts.items()}

    def _returns(self, episode: Episode) -> TurnValues | None:
        if self.config.credit == "turn":
            return self._credit.returns(episode)
        return None if episode.reward is None else (episode.reward,)

    @property
    def _credit(self) -> TurnCredit:
        return TurnCredit(self.config.gae_lambda, self.rewards.environment_weight)

    def free_decoder_memory(self, *, larger_than: int = 0) -> None:
        """Give back the decoder's cache, if it takes more bytes than that."""
        if isinstance(agent := self.worker.agent, TrainingPolicyAgent):
            agent.free_cache(larger_than=larger_than)

    def _draw_buckets(self, numbers: Sequence[int], key: str) -> None:
        """Let the curriculum, if there is one, choose the tasks with these numbers of slots."""
        if self.curriculum is not None:
            group_numbers = self.distributed.all_gather(numbers)[:: self.config.group_size]
            self.curriculum.draw(group_numbers, key)

    def _play_episodes(self, indices: Sequence[int], phase: str) -> list[Episode]:
        with self.distributed.raise_on_all_ranks():
            episodes = self.worker.play(self.plan, indices, phase)
        all_episodes = self.distributed.all_gather(episodes)
        if self.curriculum is not None:
            groups = split_into_groups(all_episodes, self.config.group_size)
            returns = [[*map(self._compared_returns, group)] for group in groups]
            self.curriculum.update(groups, [not has_equal_returns(group) for group in returns])
        with self.distributed.raise_on_all_ranks():
            if self.distributed.is_main:
                self.write_episodes(all_episodes)
        return episodes

    def _check_failures(self, episodes: Sequence[Episode]) -> None:
        """End the run if no episode can be played, unless that may be due to these tasks alone."""
        faults = [episode.error for episode in episodes if episode.error is not None]
        for fault in faults:
            if fault.kind in FATAL_FAULTS:
                raise RunError(fault.message)
        if len(faults) < len(episodes):
            self.failed_steps, self.any_succeeded = 0, True
            return
        self.failed_steps += 1
        one_task = len({episode.group_id for episode in episodes}) == 1
        permanent = all(fault.kind in PERMANENT_FAULTS for fault in faults)
        may_be_tasks = one_task or (self.any_succeeded and permanent)
        if self.failed_steps >= MAX_FAILED_STEPS or not may_be_tasks:
            raise RunError(
                f"None of {len(episodes):,} episodes could be played: {faults[0].message} When "
                "that is fixed, the same command resumes the run."
            )

    def _find_zero_variance(self) -> tuple[list[bool], dict[str, float]]:
        """Which of the step's groups have zero variance, and the metrics of `check_seeds`."""
        size = self.config.group_size
        facts = [
            (self._compared_returns(each), group_prompt_digest(each), each.environment)
            for each in self.episodes
        ]
        returns, prompts, names = zip(*self.distributed.all_gather(facts), strict=True)
        unseeded = self.check_seeds(prompts, names, size)
        return [has_equal_returns(group) for group in split_into_groups(returns, size)], unseeded

    def _compared_returns(self, episode: Episode) -> TurnValues | None:
        """What is compared within a group: the reward, or the return from each turn on."""
        if self.config.credit == "turn":
            return self._credit.compared_returns(episode)
        return None if episode.reward is None else (episode.reward,)

    def _resample(self, zero_variance: Sequence[bool], step: int) -> int:
        """Play other tasks instead of zero-variance groups; returns how many could be replaced.

        A group whose replacements have zero variance too keeps its first episodes.
        """
        pending = {group for group, flag in enumerate(zero_variance) if flag}
        total, groups, rounds = len(pending), self.config.groups, self.config.max_resamples
        for round in range(rounds):
            if not pending:
                break
            slots = [slot for slot in range(len(self.episodes)) if self._group(slot) in pending]
            first_episodes = {slot: self.episodes[slot] for slot in slots}
            # Different for every step, round and group, and the same when a run is resumed.
            first = FIRST_SPARE_TASK + (step * rounds + round) * groups
            numbers = [first + self._group(slot) for slot in slots]
            self._draw_buckets(numbers, f"{step}/{round}")
            indices = [
                self._index(slot, number) for slot, number in zip(slots, numbers, strict=True)
            ]
            episodes = self._play_episodes(indices, f"Playing other tasks for step {step:,}")
            for slot, episode in zip(slots, episodes, strict=True):
                self.episodes[slot] = episode
            flags, _ = self._find_zero_variance()
            pending = {group for group in pending if flags[group]}
            for slot in slots:
                if self._group(slot) in pending:
                    self.episodes[slot] = first_episodes[slot]
        return total - len(pending)

    def _group(self, slot: int) -> int:
        """The group of the step that a slot belongs to."""
        return self._global_slot(slot) // self.config.group_size

    def _index(self, slot: int, task_number: int) -> int:
        """The plan's index of a slot's attempt at a task."""
        size = self.config.group_size
        return task_number * size + self._global_slot(slot) % size

    def _global_slot(self, slot: int) -> int:
        slots_per_rank = self.config.episodes // self.distributed.world_size
        return self.distributed.rank * slots_per_rank + slot


class EpisodeLog:
    """The file, opened for appending when training starts."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._journal: Journal | None = None

    def open(self, size: int) -> None:
        """Truncate the file to `size` bytes and append from there."""
        try:
            with self.file.open("ab") as file:
                os.truncate(file.fileno(), min(size, os.fstat(file.fileno()).st_size))
        except OSError as error:
            raise RunError(f"Cannot write {self.file}: {error.strerror or error}.") from error
        self._journal = Journal.open(self.file)

    def append(self, episodes: Sequence[Episode]) -> None:
        assert self._journal is not None
        for episode in episodes:
            self._journal.append(episode.to_line())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._journal is not None:
            self._journal.close()
