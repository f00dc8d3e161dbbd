"""Results of an evaluation: the metrics of each candidate, and its difference from the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ludus.data.estimates import MeanEstimate
from ludus.data.tool_schema import JsonObject
from ludus.evaluation.contamination import KnownQuestions, exclude_known
from ludus.evaluation.metrics import (
    ACCURACY,
    COMPARED_METRICS,
    FORMAT_COMPLIANCE,
    MEAN_REWARD,
    Attempt,
    Metric,
    estimate,
    estimate_difference,
    pair_tasks,
)
from ludus.evaluation.slices import Slice
from ludus.evaluation.verdict import Outcome, Verdict, judge_difference


@dataclass(frozen=True, slots=True)
class CandidateScore:
    """The results of one candidate."""

    label: str
    agent: JsonObject
    episodes: int
    """All that are recorded."""
    remaining: int
    """Not played yet."""
    broken: int
    """Ended by a fault: excluded from all metrics."""
    unscored: int
    """Played to the end without a reward: excluded from accuracy and mean reward."""
    cut_off: int
    """Ended by a token limit: excluded from format compliance if no reply was complete."""
    contaminated: int
    """Excluded from all metrics, because the question is in the data given by `not_in`."""
    estimates: Mapping[str, MeanEstimate] = field(default_factory=dict)
    deltas: Mapping[str, MeanEstimate] = field(default_factory=dict)
    """Difference from the first candidate, by metric; empty for that one."""
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """Whether it is better or worse than the first, in accuracy and in mean reward."""

    def as_json(self) -> JsonObject:
        return {
            "label": self.label,
            "agent": self.agent,
            "episodes": self.episodes,
            "remaining": self.remaining,
            "broken": self.broken,
            "unscored": self.unscored,
            "cut_off": self.cut_off,
            "contaminated": self.contaminated,
            "metrics": {name: each.as_json() for name, each in self.estimates.items()},
            "deltas": {name: each.as_json() for name, each in self.deltas.items()},
            "verdicts": {name: each.as_json() for name, each in self.verdicts.items()},
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Candidates on the same tasks. The others are compared with the first."""

    folder: Path
    settings: JsonObject
    """What determines the tasks; the same for all candidates."""
    metrics: tuple[Metric, ...]
    scores: tuple[CandidateScore, ...]
    solved_at: float
    not_in: str | None
    """Data set whose questions are excluded."""
    stopped: str | None
    """Why it ended before all episodes were played; None if complete."""
    versions: Mapping[str, str]
    command: str | None = None
    ambiguous_environments: tuple[str, ...] = ()
    """Environments whose prompts do not identify their tasks: only task ids are excluded."""
    slices: tuple[Slice, ...] = ()
    """Results by environment and difficulty."""
    stop_request: str | None = None
    """Why it was told to stop, also while the last episodes were played. Not stored."""

    @property
    def complete(self) -> bool:
        return self.stopped is None

    @property
    def shown_metrics(self) -> tuple[Metric, ...]:
        """The metrics that at least one candidate has a value of to show.

        Format compliance is shown also where every reply was cut off: its row says that there is
        no value.
        """
        played = any(score.estimates for score in self.scores)
        return tuple(
            metric
            for metric in self.metrics
            if (metric.name == FORMAT_COMPLIANCE and played)
            or any(
                estimate.value > 0 or not metric.hide_if_zero
                for score in self.scores
                if (estimate := score.estimates.get(metric.name)) is not None
            )
        )

    @property
    def verdict_metrics(self) -> tuple[Metric, ...]:
        """Accuracy, and the mean reward unless it is the same: rewards of 0 and 1 only."""
        is_same = all(
            score.estimates.get(ACCURACY) is None
            or score.estimates[ACCURACY].value == score.estimates[MEAN_REWARD].value
            for score in self.scores
        )
        names = (ACCURACY,) if is_same else COMPARED_METRICS
        return tuple(metric for metric in self.shown_metrics if metric.name in names)

    @property
    def worse_candidates(self) -> tuple[CandidateScore, ...]:
        """Those that are worse than the first one, in accuracy or in mean reward."""
        return tuple(
            score
            for score in self.scores
            if any(each.outcome is Outcome.WORSE for each in score.verdicts.values())
        )

    def describe_verdicts(self) -> list[tuple[Outcome, str]]:
        """Return how each candidate compares with the first one, in words."""
        base = self.scores[0].label
        return [
            (verdict.outcome, verdict.describe(metric, score.label, base))
            for score in self.scores[1:]
            for metric in self.verdict_metrics
            if (verdict := score.verdicts.get(metric.name)) is not None
        ]

    def as_json(self) -> JsonObject:
        return {
            "version": 1,
            "kind": "eval",
            "settings": self.settings,
            "solved_at": self.solved_at,
            "not_in": self.not_in,
            "ambiguous_environments": list(self.ambiguous_environments),
            "complete": self.complete,
            "stopped": self.stopped,
            "candidates": [score.as_json() for score in self.scores],
            "slices": [each.as_json() for each in self.slices],
            "versions": dict(self.versions),
            "command": self.command,
        }


@dataclass(frozen=True, slots=True)
class CandidateAttempts:
    """A candidate with its recorded attempts."""

    label: str
    agent: JsonObject
    attempts: Sequence[Attempt]

    def without(self, known: KnownQuestions) -> CandidateAttempts:
        """The same without attempts at known questions."""
        return replace(self, attempts=exclude_known(self.attempts, known))


def score_candidates(
    candidates: Sequence[CandidateAttempts],
    counted: Sequence[CandidateAttempts],
    metrics: Sequence[Metric],
    planned: int,
) -> tuple[CandidateScore, ...]:
    """Compute the results of each candidate, from those of its attempts that are `counted`."""
    base, scores = counted[0].attempts, []
    for number, candidate in enumerate(candidates):
        attempts = counted[number].attempts
        estimates = {metric.name: estimate(metric, attempts) for metric in metrics}
        compared = metrics if number else ()
        deltas = {metric.name: estimate_difference(metric, base, attempts) for metric in compared}
        verdicts = {
            metric.name: judge_difference(delta, pair_tasks(metric, base, attempts))
            for metric in compared
            if metric.name in COMPARED_METRICS and (delta := deltas[metric.name]) is not None
        }
        score = CandidateScore(
            label=candidate.label,
            agent=candidate.agent,
            episodes=len(candidate.attempts),
            remaining=planned - len(candidate.attempts),
            broken=sum(attempt.broken for attempt in attempts),
            unscored=sum(attempt.reward is None and not attempt.broken for attempt in attempts),
            cut_off=sum(attempt.cut_off for attempt in attempts),
            contaminated=len(candidate.attempts) - len(attempts),
            estimates={name: each for name, each in estimates.items() if each is not None},
            deltas={name: each for name, each in deltas.items() if each is not None},
            verdicts=verdicts,
        )
        scores.append(score)
    return tuple(scores)
