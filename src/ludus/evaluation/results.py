"""What an evaluation came to: every candidate's figures, and how they differ from the first's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ludus.data.tool_schema import JsonObject
from ludus.evaluation.attempts import Attempt
from ludus.evaluation.contamination import KnownQuestions, exclude_known
from ludus.evaluation.metrics import Estimate, Metric, estimate, estimate_difference


@dataclass(frozen=True, slots=True)
class CandidateScore:
    """One candidate's figures."""

    label: str
    agent: JsonObject
    episodes: int
    """Recorded, whatever became of them."""
    remaining: int
    """Still to be played."""
    broken: int
    """Ended by the infrastructure: left out of every figure."""
    unscored: int
    """Played to the end and given no reward: left out of accuracy and mean reward."""
    cut_off: int
    """Ended by a token limit. Without a complete reply they tell nothing of the format."""
    contaminated: int
    """Left out of every figure, because the question is in the data that must not count."""
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    deltas: Mapping[str, Estimate] = field(default_factory=dict)
    """What it has more than the first candidate; empty for that one."""

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
            "metrics": {name: found.as_json() for name, found in self.estimates.items()},
            "deltas": {name: found.as_json() for name, found in self.deltas.items()},
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Candidates on the same tasks. The first is the base that others are compared with."""

    folder: Path
    settings: JsonObject
    """What was played, apart from who played it."""
    metrics: tuple[Metric, ...]
    scores: tuple[CandidateScore, ...]
    solved_at: float
    not_in: str | None
    stopped: str | None
    """Why it ended before everything was played, if it did."""
    versions: Mapping[str, str]
    command: str | None = None
    ambiguous_environments: tuple[str, ...] = ()
    """Environments whose tasks open alike: what `not_in` asks can then not be recognised."""

    @property
    def complete(self) -> bool:
        return self.stopped is None

    @property
    def shown_metrics(self) -> tuple[Metric, ...]:
        """The metrics that are known of any candidate."""
        return tuple(metric for metric in self.metrics if self._is_shown(metric))

    def _is_shown(self, metric: Metric) -> bool:
        known = [score.estimates.get(metric.name) for score in self.scores]
        return any(one is not None and (one.value > 0 or not metric.hide_if_zero) for one in known)

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
    """A candidate, and what it has recorded of the plan."""

    label: str
    agent: JsonObject
    attempts: Sequence[Attempt]


def score_candidates(
    candidates: Sequence[CandidateAttempts],
    metrics: Sequence[Metric],
    planned: int,
    known: KnownQuestions | None,
) -> tuple[CandidateScore, ...]:
    """The figures of each candidate; attempts at known tasks count for none of them."""
    counted = [
        one.attempts if known is None else exclude_known(one.attempts, known) for one in candidates
    ]
    return tuple(
        _score_candidate(one, own, metrics, planned, base=counted[0] if number else None)
        for number, (one, own) in enumerate(zip(candidates, counted, strict=True))
    )


def _score_candidate(
    candidate: CandidateAttempts,
    counted: Sequence[Attempt],
    metrics: Sequence[Metric],
    planned: int,
    *,
    base: Sequence[Attempt] | None,
) -> CandidateScore:
    estimates = {metric.name: estimate(metric, counted) for metric in metrics}
    deltas = {
        metric.name: estimate_difference(metric, base, counted)
        for metric in metrics
        if base is not None
    }
    return CandidateScore(
        label=candidate.label,
        agent=candidate.agent,
        episodes=len(candidate.attempts),
        remaining=planned - len(candidate.attempts),
        broken=sum(attempt.broken for attempt in counted),
        unscored=sum(attempt.reward is None and not attempt.broken for attempt in counted),
        cut_off=sum(attempt.cut_off for attempt in counted),
        contaminated=len(candidate.attempts) - len(counted),
        estimates={name: found for name, found in estimates.items() if found is not None},
        deltas={name: found for name, found in deltas.items() if found is not None},
    )
