"""The rollouts of a step: episodes in groups, played concurrently, and their advantages."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from ludus.data.episode import Episode, StopReason
from ludus.data.journal import Journal
from ludus.errors import RunError
from ludus.policy.engine.engine_api import DecodeStats
from ludus.rollout.episode_loop import FATAL_FAULTS, PERMANENT_FAULTS
from ludus.rollout.plan import Plan
from ludus.rollout.progress import PhaseProgress
from ludus.scoring.reward_functions import RewardFunctions
from ludus.train.distributed import Distributed
from ludus.train.grpo.advantages import (
    SeedCheck,
    TurnCredit,
    TurnValues,
    has_equal_returns,
    split_into_groups,
    turn_advantages,
)
from ludus.train.grpo.curriculum import Curriculum
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.policy_agent import TrainingPolicyAgent, current_policy
from ludus.train.grpo.rollout_worker import RolloutWorker

if TYPE_CHECKING:
    from ludus.train.grpo.trainer import GRPOTrainer


EpisodeSink = Callable[[Sequence[Episode]], None]
MAX_FAILED_STEPS = 3
"""The run ends after so many consecutive steps without a playable episode."""


@dataclass(slots=True)
class GroupRollouts:
    """Plays the episodes of a step."""

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
    episodes: Sequence[Episode] = ()
    """All processes' episodes of the current step; consecutive ones form the groups."""
    failed_steps: int = 0
    """Consecutive steps in which no episode could be played."""
    any_succeeded: bool = False
    """Whether any episode of the run could be played."""

    def play(self, trainer: GRPOTrainer) -> Sequence[Episode]:
        """Play the episodes of the next step; returns this process's episodes."""
        started, config = perf_counter(), self.config
        step, agent = trainer.state.global_step + 1, self.worker.agent
        assert isinstance(agent, TrainingPolicyAgent)
        agent.step, stats_before = step, agent.decode_stats
        first_task, first_episode = (step - 1) * config.groups, (step - 1) * config.episodes
        if self.curriculum is not None:
            self.curriculum.draw(range(first_task, first_task + config.groups), f"{step}")
        with self.distributed.raise_on_all_ranks(), current_policy(self.worker, trainer.model):
            indices = range(config.episodes)[self._own_episodes]
            phase = f"Playing step {step:,}"
            episodes = self.worker.play(self.plan, [first_episode + at for at in indices], phase)
        self.episodes = self.distributed.all_gather(episodes)
        with self.distributed.raise_on_all_ranks():
            if self.distributed.is_main:
                self.write_episodes(self.episodes)
        self._check_failures(self.episodes)
        has_signal = self._find_signal()
        metrics = self._episode_metrics() | {"zero_variance": 1 - fmean(has_signal)}
        if self.curriculum is not None:
            groups = split_into_groups(self.episodes, config.group_size)
            metrics |= self.curriculum.update(groups, has_signal)
        self.worker.on_phase(PhaseProgress("Training"))
        metrics |= decode_metrics(stats_before, agent.decode_stats)
        trainer.log_metrics(metrics | {"time/rollout": perf_counter() - started})
        return episodes

    def advantages(self, scale: str) -> tuple[list[TurnValues], list[bool]]:
        """For this process's episodes: the advantages of their turns, or of the whole episode, and
        whether they are compared with others at all.

        Episodes of groups without a signal, and those without a reward, have no advantages.
        """
        size = self.config.group_size
        returns = [self._returns(each) for each in self.episodes]
        has_signal = self._find_signal()
        compared = [
            values is not None and has_signal[at // size] for at, values in enumerate(returns)
        ]
        # The mean of equal rewards may be rounded, and the rounding error divided by a deviation of
        # nearly 0 would be a large advantage made of noise.
        pairs = zip(turn_advantages(returns, size, scale), compared, strict=True)
        advantages = [values if flag else () for values, flag in pairs]
        return advantages[self._own_episodes], compared[self._own_episodes]

    def free_decoder_memory(self) -> None:
        """Give back the decoder's cache."""
        if isinstance(agent := self.worker.agent, TrainingPolicyAgent):
            agent.free_cache()

    @property
    def _own_episodes(self) -> slice:
        count = self.config.episodes // self.distributed.world_size
        return slice(self.distributed.rank * count, (self.distributed.rank + 1) * count)

    def _find_signal(self) -> list[bool]:
        """For each group, whether the returns of its episodes differ."""
        compared: list[TurnValues | None]
        if self.config.credit == "turn":
            compared = [self._credit.compared_returns(each) for each in self.episodes]
        else:
            compared = [self._returns(each) for each in self.episodes]
        groups = split_into_groups(compared, self.config.group_size)
        return [not has_equal_returns(group) for group in groups]

    def _returns(self, episode: Episode) -> TurnValues | None:
        """The return from each turn on, or only of the whole episode; None if unscored."""
        if self.config.credit == "turn":
            return self._credit.returns(episode)
        return None if episode.reward is None else (episode.reward,)

    @property
    def _credit(self) -> TurnCredit:
        return TurnCredit(self.config.gae_lambda, self.rewards.environment_weight)

    def _episode_metrics(self) -> dict[str, float]:
        """Metrics of the step's episodes, their rewards, and the parts of these."""
        episodes = self.episodes
        metrics = episode_metrics(episodes)
        rewards = [each.reward for each in episodes if each.reward is not None]
        if rewards:
            metrics["reward"] = fmean(rewards)
        if len(rewards) > 1:
            metrics["reward_std"] = stdev(rewards)
        parts: defaultdict[str, list[float]] = defaultdict(list)
        for episode in episodes:
            for name, value in self.rewards.parts(episode).items():
                parts[name].append(value)
        metrics |= {f"rewards/{name}/mean": fmean(values) for name, values in parts.items()}
        return metrics | self.check_seeds(split_into_groups(episodes, self.config.group_size))

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
                f"None of {len(faults):,} episodes could be played: {faults[0].message} When "
                "that is fixed, the same command resumes the run."
            )


class RolloutLog:
    """The file, opened for appending when training starts."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._journal: Journal | None = None

    def open(self, size: int) -> None:
        """Truncate the file of episodes to `size` bytes and append from there."""
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


_UNLOGGED_METRICS = frozenset({"step_time", "frac_reward_zero_std", "epoch"})
_UNLOGGED_PREFIXES = ("completions/", "clip_ratio/", "tools/", "sampling/", "profiling/")


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Shares and means under their names in `log.jsonl`; metrics without data are left out."""
    scored = [episode for episode in episodes if not episode.broken]
    metrics = {"unscored": 1 - len(scored) / len(episodes)}
    if scored:
        metrics |= format_metrics(scored)
        metrics |= {
            "done": fmean(episode.done for episode in scored),
            "cut_off": fmean(episode.cut_off for episode in scored),
            "out_of_turns": fmean(each.stop_reason is StopReason.MAX_TURNS for each in scored),
            "length": fmean(sum(each.tokens.mask) if each.tokens else 0 for each in scored),
            "turns": fmean(episode.turns for episode in scored),
        }
    negative_logprobs = [
        -logprob
        for episode in scored
        if episode.tokens is not None
        for logprob, sampled in zip(episode.tokens.logprobs, episode.tokens.mask, strict=True)
        if sampled and logprob is not None
    ]
    if negative_logprobs:
        metrics["sampled_nll"] = fmean(negative_logprobs)
    timings = [episode.timing for episode in episodes if episode.timing is not None]
    if timings:
        metrics["time/model"] = fmean(timing.model_s for timing in timings)
        metrics["time/environment"] = fmean(timing.environment_s for timing in timings)
    return metrics


def decode_metrics(before: DecodeStats, after: DecodeStats) -> dict[str, float]:
    """Metrics of decoding: its time, and the share of prompt tokens found in the prefix cache."""
    prefilled = after.prefilled_tokens - before.prefilled_tokens
    reused = after.reused_tokens - before.reused_tokens
    metrics = {"time/decode": after.busy_s - before.busy_s}
    if prefilled + reused:
        metrics["reused"] = reused / (prefilled + reused)
    return metrics


def format_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """The share of format-compliant replies among complete episodes; empty without any."""
    flags = [flag for each in episodes if (flag := each.format_compliant) is not None]
    return {"format": fmean(flags)} if flags else {}


def to_log_line(logs: Mapping[str, Any]) -> dict[str, Any]:
    """TRL's metrics of a step under Ludus's names, without values that are not finite."""
    line = {
        name: value
        for name, value in logs.items()
        if name not in _UNLOGGED_METRICS and not name.startswith(_UNLOGGED_PREFIXES)
        if isinstance(value, int | float) and isfinite(value)
    }
    if (tokens := line.pop("num_tokens", None)) is not None:
        line["tokens"] = int(tokens)
    return line
