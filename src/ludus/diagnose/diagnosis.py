"""What became of a GRPO run: its figures, and the verdicts on them, the weightiest first.

Pure: a log and episodes go in, a diagnosis comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ludus.diagnose import failure_rules, limit_rules, progress_rules
from ludus.diagnose.episode_stats import RunEpisodes
from ludus.diagnose.log_stats import BestWindow, LogEntry, StepLog, metric_mean, metric_values
from ludus.diagnose.reward_delta import RewardChange, component_changes, reward_change
from ludus.diagnose.verdict import RunEvidence, Verdict, find_early_stop

WINDOW_METRICS = (
    *("reward_std", "equal", "trained", "format", "done"),
    *("cut_off", "out_of_turns", "unscored", "unseeded"),
    *("length", "turns", "entropy", "surprise", "grad_norm", "kl"),
)
"""Of the log, at both ends of the run."""
STEP_PHASES = ("rollout", "model", "environment", "train", "step")
_NO_EPISODES = RunEpisodes()

Rule = Callable[[RunEvidence], Verdict | None]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What became of a run."""

    steps: int
    """All that were made."""
    window: int
    """Logged steps of the beginning and of the end, which are compared: those with a reward."""
    reward: RewardChange | None
    """None: no episode was scored."""
    parts: tuple[RewardChange, ...]
    """Environments of a mix, and reward functions."""
    figures: Mapping[str, tuple[float, float]]
    """At the beginning and at the end."""
    seconds: Mapping[str, float]
    """Of a step, by phase, as a mean over the run."""
    curve: tuple[float, ...]
    """The reward of each logged step."""
    best: BestWindow | None
    held_out: tuple[tuple[int, float], ...]
    verdicts: tuple[Verdict, ...]


def diagnose(
    entries: Iterable[LogEntry], episodes: RunEpisodes = _NO_EPISODES, *, completed_steps: int = 0
) -> Diagnosis:
    """Judge a run by its log and its episodes; it may still be under way.

    `made` are the steps of one that has ended.
    """
    course = StepLog.from_entries(entries, completed_steps=completed_steps)
    if not course.entries:
        return Diagnosis(0, 0, None, (), {}, {}, (), None, course.held_out, ())
    change, parts = reward_change(course, episodes), component_changes(course, episodes)
    return Diagnosis(
        steps=course.steps,
        window=course.window_size,
        reward=change,
        parts=parts,
        figures=_window_metrics(course),
        seconds=_phase_seconds(course),
        curve=tuple(metric_values(course.entries, "reward")),
        best=course.best_window(),
        held_out=course.held_out,
        verdicts=tuple(_build_verdicts(course, episodes, change, parts)),
    )


def _window_metrics(log: StepLog) -> dict[str, tuple[float, float]]:
    found = {
        key: (metric_mean(log.first_window, key), metric_mean(log.last_window, key))
        for key in WINDOW_METRICS
    }
    return {
        key: (first, last)
        for key, (first, last) in found.items()
        if first is not None and last is not None
    }


def _phase_seconds(log: StepLog) -> dict[str, float]:
    found = {phase: metric_mean(log.entries, f"time/{phase}") for phase in STEP_PHASES}
    return {phase: seconds for phase, seconds in found.items() if seconds is not None}


def _build_verdicts(
    log: StepLog,
    episodes: RunEpisodes,
    change: RewardChange | None,
    parts: tuple[RewardChange, ...],
) -> list[Verdict]:
    """What holds, in the order of what to mend first."""
    first = [
        limit_rules.check_cut_off(log, episodes),
        failure_rules.check_unstable(log),
        failure_rules.check_unscored(log, episodes),
        failure_rules.check_unseeded(log),
    ]
    found = [verdict for verdict in first if verdict is not None]
    if change is None:
        return found
    mixed = episodes.environments if len(episodes.environments) > 1 else ()
    environments = tuple(part for part in parts if part.name in mixed)
    case = RunEvidence(log, episodes, change, environments, find_early_stop(log))
    short = progress_rules.check_too_short(case)
    return [*found, short] if short else [*found, *_apply_learning_rules(case)]


def _apply_learning_rules(evidence: RunEvidence) -> list[Verdict]:
    outcome = _apply_rules(evidence, progress_rules.check_learned)
    if limit_rules.is_mostly_cut_off(evidence.log):
        # Low and equal rewards follow from that, and say nothing of the tasks or the model.
        return [
            *_apply_rules(evidence, progress_rules.check_format, progress_rules.check_reward_fell),
            *outcome,
        ]
    cause = _apply_rules(evidence, progress_rules.check_format)
    cause = cause or [
        *progress_rules.check_too_hard(evidence),
        *progress_rules.check_too_easy(evidence),
    ]
    later = _apply_rules(
        evidence,
        progress_rules.check_reward_fell,
        failure_rules.check_entropy_collapse,
        failure_rules.check_low_entropy,
    )
    # What is too easy or too hard has equal groups for that very reason.
    if not cause:
        later += _apply_rules(evidence, failure_rules.check_dead_groups)
    if not cause or evidence.environment_changes:
        later += _apply_rules(evidence, progress_rules.check_saturated)
    if not (cause or later or outcome):
        outcome = _apply_rules(evidence, progress_rules.check_no_progress)
    return [*cause, *later, *_apply_rules(evidence, limit_rules.check_out_of_turns), *outcome]


def _apply_rules(evidence: RunEvidence, *rules: Rule) -> list[Verdict]:
    return [found for rule in rules if (found := rule(evidence)) is not None]
