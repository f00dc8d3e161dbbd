"""The diagnosis of a GRPO run: its numbers, and the verdicts on them, the most important first.

Pure: takes a log and episodes, returns a `Diagnosis`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ludus.data.task_mean import MeanEstimate
from ludus.data.training_log import LogEntry, metric_values
from ludus.diagnose import (
    curriculum_rules,
    difficulty_rules,
    entropy_rules,
    failure_rules,
    group_rules,
    health_rules,
    limit_rules,
    progress_rules,
)
from ludus.diagnose.curriculum_stats import BucketStats, bucket_stats
from ludus.diagnose.episode_stats import RunEpisodes
from ludus.diagnose.evidence import RunEvidence
from ludus.diagnose.log_stats import BestWindow, StepLog, metric_mean
from ludus.diagnose.reward_delta import RewardChange, component_changes, reward_change
from ludus.diagnose.saturation import find_early_stop
from ludus.diagnose.verdict import Verdict

WINDOW_METRICS = (
    *("reward_std", "equal", "trained", "format", "done"),
    *("cut_off", "out_of_turns", "unscored", "unseeded"),
    *("length", "turns", "entropy", "surprise", "grad_norm", "kl"),
)
"""Metrics that are compared between the first and the last window."""
STEP_PHASES = ("rollout", "model", "environment", "train", "step")
_NO_EPISODES = RunEpisodes()

Rule = Callable[[RunEvidence], Verdict | None]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Numbers and verdicts of a run."""

    steps: int
    window: int
    """Logged steps in the first and in the last window, which are compared."""
    mean_reward: MeanEstimate | None
    """Over the episodes of all steps; None: no episode was scored."""
    reward: RewardChange | None
    """From the first to the last window; None: no episode was scored."""
    parts: tuple[RewardChange, ...]
    """Reward change for each environment of a mixture and for each reward function."""
    figures: Mapping[str, tuple[float, float]]
    """Mean of each metric in the first and in the last window."""
    seconds: Mapping[str, float]
    """Mean duration of each phase of a step."""
    curve: tuple[float, ...]
    """The reward of each logged step."""
    best: BestWindow | None
    held_out: tuple[tuple[int, float], ...]
    curriculum: tuple[BucketStats, ...]
    """The buckets of a curriculum that were drawn."""
    verdicts: tuple[Verdict, ...]


def diagnose(
    entries: Iterable[LogEntry], episodes: RunEpisodes = _NO_EPISODES, *, completed_steps: int = 0
) -> Diagnosis:
    """Diagnose a run from its log and its episodes; it may still be running.

    `completed_steps` is the number of steps of a finished run, whose last ones may not be logged.
    """
    log = StepLog.from_entries(entries, completed_steps=completed_steps)
    if not log.entries:
        return Diagnosis(0, 0, None, None, (), {}, {}, (), None, log.held_out, (), ())
    buckets = bucket_stats(log.entries, log.last_window)
    change, components = reward_change(log, episodes), component_changes(log, episodes)
    windows = {
        key: (metric_mean(log.first_window, key), metric_mean(log.last_window, key))
        for key in WINDOW_METRICS
    }
    phases = {phase: metric_mean(log.entries, f"time/{phase}") for phase in STEP_PHASES}
    return Diagnosis(
        steps=log.steps,
        window=log.window_size,
        mean_reward=episodes.mean_reward,
        reward=change,
        parts=components,
        figures={
            key: (first, last)
            for key, (first, last) in windows.items()
            if first is not None and last is not None
        },
        seconds={phase: seconds for phase, seconds in phases.items() if seconds is not None},
        curve=tuple(metric_values(log.entries, "reward")),
        best=log.best_window(),
        held_out=log.held_out,
        curriculum=buckets,
        verdicts=tuple(_build_verdicts(log, episodes, change, components, buckets)),
    )


def _build_verdicts(
    log: StepLog,
    episodes: RunEpisodes,
    change: RewardChange | None,
    components: tuple[RewardChange, ...],
    buckets: tuple[BucketStats, ...],
) -> list[Verdict]:
    """Return the verdicts that apply, in the order in which to act on them."""
    candidates = (
        limit_rules.check_cut_off(log, episodes),
        failure_rules.check_unstable(log),
        failure_rules.check_unscored(log, episodes),
        group_rules.check_unseeded(log),
        health_rules.check_rollbacks(log),
        health_rules.check_mismatch(log),
    )
    verdicts = [verdict for verdict in candidates if verdict is not None]
    if change is None:
        return verdicts
    environments = episodes.environments if len(episodes.environments) > 1 else ()
    evidence = RunEvidence(
        log,
        episodes,
        change,
        tuple(component for component in components if component.name in environments),
        find_early_stop(log),
    )
    too_short = progress_rules.check_too_short(evidence)
    if too_short:
        return [*verdicts, too_short]
    if buckets:
        return [*verdicts, *_apply_curriculum_rules(evidence, buckets)]
    return [*verdicts, *_apply_learning_rules(evidence)]


def _apply_curriculum_rules(
    evidence: RunEvidence, buckets: tuple[BucketStats, ...]
) -> list[Verdict]:
    """Without rules on the reward, whose tasks change."""
    rules: tuple[Rule, ...] = (
        failure_rules.check_format,
        entropy_rules.check_entropy_collapse,
        entropy_rules.check_low_entropy,
        limit_rules.check_out_of_turns,
    )
    verdicts = [verdict for rule in rules if (verdict := rule(evidence)) is not None]
    return [*verdicts, *curriculum_rules.check_curriculum(buckets)]


def _apply_learning_rules(evidence: RunEvidence) -> list[Verdict]:
    def apply(*rules: Rule) -> list[Verdict]:
        return [verdict for rule in rules if (verdict := rule(evidence)) is not None]

    outcome = apply(progress_rules.check_learned)
    causes = apply(failure_rules.check_format)
    if limit_rules.is_mostly_cut_off(evidence.log):
        # Low rewards and zero-variance groups follow from the limit, not from tasks or model.
        return [*causes, *apply(progress_rules.check_reward_fell), *outcome]
    if not causes:
        causes += difficulty_rules.check_too_hard(evidence)
        causes += difficulty_rules.check_too_easy(evidence)
    effects = apply(
        progress_rules.check_reward_fell,
        entropy_rules.check_entropy_collapse,
        entropy_rules.check_low_entropy,
    )
    # Tasks that are too easy or too hard have zero-variance groups for that very reason.
    if not causes:
        effects += apply(group_rules.check_dead_groups)
    if not causes or evidence.environment_changes:
        effects += apply(progress_rules.check_saturated)
    if not (causes or effects or outcome):
        outcome = apply(progress_rules.check_no_progress)
    return [*causes, *effects, *apply(limit_rules.check_out_of_turns), *outcome]
