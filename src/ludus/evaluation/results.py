"""Results of an evaluation: the metrics of each candidate, and its difference from the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ludus.data.tool_schema import JsonObject
from ludus.evaluation.attempts import Attempt
from ludus.evaluation.contamination import KnownQuestions, exclude_known
from ludus.evaluation.metrics import Metric, MetricEstimate, estimate, estimate_difference


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
    estimates: Mapping[str, MetricEstimate] = field(default_factory=dict)
    deltas: Mapping[str, MetricEstimate] = field(default_factory=dict)
    """Difference from the first candidate, by metric; empty for that one."""

    def as_json(self) -> JsonObject:
        return {
            "label": self.label,
            "agent": self.agent,
            "episodes": self.episodes,
            "left": self.remaining,
            "broken": self.broken,
            "unscored": self.unscored,
            "cut_off": self.cut_off,
            "known": self.contaminated,
            "metrics": {name: each.as_json() for name, each in self.estimates.items()},
            "deltas": {name: each.as_json() for name, each in self.deltas.items()},
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

    @property
    def complete(self) -> bool:
        return self.stopped is None

    @property
    def shown_metrics(self) -> tuple[Metric, ...]:
        """The metrics that at least one candidate has a value of to show."""
        return tuple(
            metric
            for metric in self.metrics
            if any(
                estimate.value > 0 or not metric.hide_if_zero
                for score in self.scores
                if (estimate := score.estimates.get(metric.name)) is not None
            )
        )

    def as_json(self) -> JsonObject:
        return {
            "version": 1,
            "kind": "eval",
            "settings": self.settings,
            "solved_at": self.solved_at,
            "not_in": self.not_in,
            "alike": list(self.ambiguous_environments),
            "complete": self.complete,
            "stopped": self.stopped,
            "candidates": [score.as_json() for score in self.scores],
            "versions": dict(self.versions),
            "command": self.command,
        }


@dataclass(frozen=True, slots=True)
class CandidateAttempts:
    """A candidate with its recorded attempts."""

    label: str
    agent: JsonObject
    attempts: Sequence[Attempt]


def score_candidates(
    candidates: Sequence[CandidateAttempts],
    metrics: Sequence[Metric],
    planned: int,
    known: KnownQuestions | None,
) -> tuple[CandidateScore, ...]:
    """Compute the results of each candidate, without attempts at known questions."""
    counted = [
        each.attempts if known is None else exclude_known(each.attempts, known)
        for each in candidates
    ]
    scores = []
    for number, (candidate, attempts) in enumerate(zip(candidates, counted, strict=True)):
        estimates = {metric.name: estimate(metric, attempts) for metric in metrics}
        deltas = {
            metric.name: estimate_difference(metric, counted[0], attempts)
            for metric in metrics
            if number > 0
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
        )
        scores.append(score)
    return tuple(scores)
