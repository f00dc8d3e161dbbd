"""Results of an evaluation: metrics of each candidate, differences from the first, and verdicts.

A difference is resolved if its 95 % interval excludes 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter
from pydantic_core import from_json, to_jsonable_python

from ludus.data.interval_estimates import MIN_SAMPLES, MeanEstimate
from ludus.data.run_folder import SUMMARY_FILE
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError
from ludus.evaluation.metrics import (
    ACCURACY,
    COMPARED_METRICS,
    FORMAT_COMPLIANCE,
    MEAN_REWARD,
    PASS_PREFIX,
    Attempt,
    Metric,
    build_metrics,
    estimate_all,
    estimate_deltas,
    pair_tasks,
)
from ludus.evaluation.slices import Slice

T = TypeVar("T")

NO_INTERVAL = "(no interval)"


class Outcome(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    NOT_RESOLVED = "not resolved"


def judge_difference(difference: MeanEstimate, tasks: int) -> Outcome:
    """Judge a difference between two candidates over this many tasks."""
    if difference.low is not None and difference.low > 0:
        return Outcome.BETTER
    if difference.high is not None and difference.high < 0:
        return Outcome.WORSE
    if tasks < MIN_SAMPLES or difference.value == 0 or difference.low is not None:
        return Outcome.NOT_RESOLVED
    # Without an interval, because it is the same for every task.
    return Outcome.BETTER if difference.value > 0 else Outcome.WORSE


def format_difference(difference: MeanEstimate, metric: Metric) -> str:
    """Format a difference with its interval: +12.0 pp (+3.1 to +20.4)."""
    text = metric.format_number(difference.value, "+") + (" pp" if metric.is_share else "")
    if difference.low is None or difference.high is None:
        return f"{text} {NO_INTERVAL}"
    low, high = (metric.format_number(end, "+") for end in (difference.low, difference.high))
    return f"{text} ({low} to {high})"


def describe_verdict(
    outcome: Outcome, difference: MeanEstimate, metric: Metric, *, label: str, base: str
) -> str:
    """Describe a verdict in a sentence."""
    title = metric.title if metric.name.startswith(PASS_PREFIX) else metric.title.lower()
    result = format_difference(difference, metric)
    if outcome is not Outcome.NOT_RESOLVED:
        return f"{label} is {outcome} than {base} in {title}: {result}, n = {difference.n:,}."
    return (
        f"The difference between {label} and {base} in {title} is not resolved at "
        f"n = {difference.n:,}: {result}."
    )


@dataclass(frozen=True, slots=True)
class CandidateScore:
    """The results of one candidate."""

    label: str
    agent: JsonObject
    episodes: int
    """All that are recorded."""
    remaining: int
    broken: int
    """Ended by a fault: excluded from all metrics."""
    unscored: int
    """Played to the end without a reward: excluded from accuracy and mean reward."""
    cut_off: int
    """Ended by a token limit: excluded from format compliance if no reply was complete."""
    contaminated: int
    """Excluded from all metrics, because the task is in the data of `exclude_tasks_in`."""
    metrics: Mapping[str, MeanEstimate]
    deltas: Mapping[str, MeanEstimate]
    """Difference from the first candidate, by metric; empty for that one."""
    verdicts: Mapping[str, Outcome]
    """Whether it is better or worse than the first, in accuracy and in mean reward."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Candidates on the same tasks. The others are compared with the first."""

    folder: Path
    settings: JsonObject
    """What determines the tasks; the same for all candidates."""
    metrics: tuple[Metric, ...]
    scores: tuple[CandidateScore, ...]
    solved_at: float
    exclude_tasks_in: str | None
    stopped: str | None
    """Why it ended before all episodes were played; None if complete."""
    versions: Mapping[str, str]
    command: str | None = None
    slices: tuple[Slice, ...] = ()
    stop_request: str | None = None
    """Why it was told to stop, also while the last episodes were played. Not stored."""

    @property
    def complete(self) -> bool:
        return self.stopped is None

    @property
    def shown_metrics(self) -> tuple[Metric, ...]:
        """The metrics for which at least one candidate has a value to show.

        Format compliance is shown also if every reply was cut off: its row says that there is no
        value.
        """
        played = any(score.metrics for score in self.scores)
        return tuple(
            metric
            for metric in self.metrics
            if (metric.name == FORMAT_COMPLIANCE and played)
            or any(
                estimate.value > 0 or not metric.hide_if_zero
                for score in self.scores
                if (estimate := score.metrics.get(metric.name)) is not None
            )
        )

    @property
    def verdict_metrics(self) -> tuple[Metric, ...]:
        """Accuracy, and mean reward unless it is equal, as with rewards of 0 and 1 only."""
        is_same = all(
            score.metrics.get(ACCURACY) is None
            or score.metrics[ACCURACY].value == score.metrics[MEAN_REWARD].value
            for score in self.scores
        )
        names = (ACCURACY,) if is_same else COMPARED_METRICS
        return tuple(metric for metric in self.shown_metrics if metric.name in names)

    @property
    def worse_candidates(self) -> tuple[CandidateScore, ...]:
        """Those that are worse than the first one, in accuracy or in mean reward."""
        return tuple(score for score in self.scores if Outcome.WORSE in score.verdicts.values())

    def describe_verdicts(self) -> list[tuple[Outcome, str]]:
        """Describe how each candidate compares with the first one, in a sentence per metric."""
        base, described = self.scores[0].label, list[tuple[Outcome, str]]()
        for score in self.scores[1:]:
            for metric in self.verdict_metrics:
                if (outcome := score.verdicts.get(metric.name)) is not None:
                    delta = score.deltas[metric.name]
                    text = describe_verdict(outcome, delta, metric, label=score.label, base=base)
                    described.append((outcome, text))
        return described

    def as_json(self) -> JsonObject:
        """The content of `summary.json`, which `parse_evaluation` reads."""
        return {
            "version": 1,
            "kind": "eval",
            "settings": self.settings,
            "solved_at": self.solved_at,
            "exclude_tasks_in": self.exclude_tasks_in,
            "complete": self.complete,
            "stopped": self.stopped,
            "candidates": to_jsonable_python(self.scores),
            "slices": to_jsonable_python(self.slices),
            "versions": dict(self.versions),
            "command": self.command,
        }


def load_evaluation(folder: Path) -> Evaluation:
    """Load the results of an evaluation; raises RunError if there are none."""
    try:
        summary = from_json((folder / SUMMARY_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / SUMMARY_FILE} holds no evaluation: {error}.") from None
    return parse_evaluation(folder, summary)


def parse_evaluation(folder: Path, summary: JsonObject) -> Evaluation:
    """Parse the results in `summary.json`; raises RunError if it is no evaluation."""

    def parse(kind: type[T], fields: object) -> T:
        return TypeAdapter(kind).validate_python(fields)

    try:
        scores = parse(tuple[CandidateScore, ...], summary["candidates"])
        names = dict.fromkeys(name for score in scores for name in score.metrics)
        sizes = [name.removeprefix(PASS_PREFIX) for name in names if name.startswith(PASS_PREFIX)]
        return Evaluation(
            folder=folder,
            settings=summary["settings"],
            metrics=build_metrics(summary["solved_at"], [int(size) for size in sizes]),
            scores=scores,
            solved_at=summary["solved_at"],
            exclude_tasks_in=summary["exclude_tasks_in"],
            stopped=summary["stopped"],
            versions=summary["versions"],
            command=summary["command"],
            slices=parse(tuple[Slice, ...], summary["slices"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"{folder / SUMMARY_FILE} holds no evaluation: {reason}.") from None


@dataclass(frozen=True, slots=True)
class CandidateAttempts:
    """A candidate with its recorded attempts."""

    label: str
    agent: JsonObject
    attempts: Sequence[Attempt]
    contaminated: int = field(default=0, kw_only=True)
    """How many more there are, which do not count."""


def score_candidates(
    candidates: Sequence[CandidateAttempts], metrics: Sequence[Metric], planned: int
) -> tuple[CandidateScore, ...]:
    """Compute the results of each candidate."""
    base, scores = candidates[0].attempts, []
    for number, candidate in enumerate(candidates):
        attempts = candidate.attempts
        deltas = estimate_deltas(metrics, base, attempts) if number else {}
        verdicts = {
            metric.name: judge_difference(delta, len(pair_tasks(metric, base, attempts)))
            for metric in metrics
            if metric.name in COMPARED_METRICS and (delta := deltas.get(metric.name)) is not None
        }
        episodes = len(attempts) + candidate.contaminated
        score = CandidateScore(
            label=candidate.label,
            agent=candidate.agent,
            episodes=episodes,
            remaining=planned - episodes,
            broken=sum(attempt.broken for attempt in attempts),
            unscored=sum(attempt.reward is None and not attempt.broken for attempt in attempts),
            cut_off=sum(attempt.cut_off for attempt in attempts),
            contaminated=candidate.contaminated,
            metrics=estimate_all(metrics, attempts),
            deltas=deltas,
            verdicts=verdicts,
        )
        scores.append(score)
    return tuple(scores)
