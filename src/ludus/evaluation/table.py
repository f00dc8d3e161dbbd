"""The figures in words: for a few candidates side by side, for many one below the other.

Plain text in cells; a terminal and a Markdown file draw the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ludus.data.bootstrap import MIN_SAMPLES
from ludus.data.tool_schema import JsonObject
from ludus.evaluation.metrics import Estimate, Metric
from ludus.evaluation.results import CandidateScore, Evaluation

_NO_VALUE = "-"
_NO_INTERVAL = "(no interval)"
_MAX_SIDE_BY_SIDE = 3
"""Candidates that can be read side by side."""


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table: the names of its columns, and its rows."""

    header: list[str]
    rows: list[list[str]]


def build_tables(evaluation: Evaluation) -> list[ResultTable]:
    """The same figures, in the shape that reads best first; the last is the narrowest."""
    few = len(evaluation.scores) <= _MAX_SIDE_BY_SIDE
    return [build_wide_table(evaluation), build_long_table(evaluation)][0 if few else 1 :]


def build_wide_table(evaluation: Evaluation) -> ResultTable:
    """A row a metric, a column a candidate, then a column for what changed against the base."""
    scores, others = evaluation.scores, evaluation.scores[1:]
    deltas = ["Delta"] if len(others) == 1 else [f"Delta {score.label}" for score in others]
    rows = [
        [
            metric.title,
            *(_value(score, metric) for score in scores),
            *(_delta(score, metric) for score in others),
        ]
        for metric in evaluation.shown_metrics
    ]
    if evaluation.shown_metrics:
        rows.append(["n", *_counts(evaluation)])
    return ResultTable(["Metric", *(score.label for score in scores), *deltas], rows)


def build_long_table(evaluation: Evaluation) -> ResultTable:
    """A row for each metric of each candidate."""
    rows = [
        [
            "" if number else metric.title,
            score.label,
            _value(score, metric),
            _delta(score, metric) if number else "",
            _count(score.estimates.get(metric.name)),
        ]
        for metric in evaluation.shown_metrics
        for number, score in enumerate(evaluation.scores)
    ]
    return ResultTable(["Metric", "Candidate", "Value", "Delta", "n"], rows)


def build_notes(evaluation: Evaluation) -> list[str]:
    """What is not in the figures, and why."""
    notes = [note for score in evaluation.scores for note in _candidate_notes(score, evaluation)]
    notes += [
        f"{environment}: tasks open alike and cannot be told apart by what they ask, so only those "
        f"are left out that {evaluation.not_in} has with the same seed and arguments."
        for environment in evaluation.ambiguous_environments
    ]
    if not evaluation.complete:
        words = f"Not everything is played ({evaluation.stopped}); the same command goes on."
        notes.append(words)
    return notes


def describe_method(evaluation: Evaluation) -> str:
    """How the figures are to be read."""
    base = evaluation.scores[0].label
    against = (
        f" Delta is against {base}, over the tasks that both have."
        if len(evaluation.scores) > 1
        else ""
    )
    lacking = any(_NO_INTERVAL in cell for row in build_wide_table(evaluation).rows for cell in row)
    why = (
        f" No interval: fewer than {MIN_SAMPLES} tasks, or all of them the same." if lacking else ""
    )
    return f"In brackets: 95% confidence intervals.{why}{against}"


def _value(score: CandidateScore, metric: Metric) -> str:
    unit = "%" if metric.is_share else ""
    return _format_estimate(score.estimates.get(metric.name), metric, unit)


def _delta(score: CandidateScore, metric: Metric) -> str:
    unit = " pp" if metric.is_share else ""
    return _format_estimate(score.deltas.get(metric.name), metric, unit, sign="+")


def _format_estimate(found: Estimate | None, metric: Metric, unit: str, *, sign: str = "") -> str:
    """The value, and its interval in brackets."""
    if found is None:
        return _NO_VALUE
    digits = 1 if metric.is_share or metric.name == "reply_tokens" else 3
    scale, form = 100 if metric.is_share else 1, f"{sign},.{digits}f"
    value = f"{scale * found.value:{form}}{unit}"
    if found.low is None or found.high is None:
        return f"{value} {_NO_INTERVAL}"
    return f"{value} ({scale * found.low:{form}} to {scale * found.high:{form}})"


def _counts(evaluation: Evaluation) -> Iterator[str]:
    """How many episodes, or pairs of them, were counted; a single metric may know of fewer."""
    yield from (_count(*score.estimates.values()) for score in evaluation.scores)
    yield from (_count(*score.deltas.values()) for score in evaluation.scores[1:])


def _count(*found: Estimate | None) -> str:
    most = max((one.n for one in found if one is not None), default=0)
    return f"{most:,}" if most else _NO_VALUE


def _candidate_notes(score: CandidateScore, evaluation: Evaluation) -> list[str]:
    notes = []
    if score.remaining:
        notes.append(f"{_pluralize(score.remaining, 'episode')} still to be played")
    if score.broken:
        notes.append(
            f"{_pluralize(score.broken, 'episode')} broken and left out of every figure "
            "(--retry-broken plays them again)"
        )
    if score.unscored:
        words = "unscored and left out of accuracy and reward"
        notes.append(f"{_pluralize(score.unscored, 'episode')} {words}")
    if score.cut_off:
        limits = " or ".join(_token_limits(evaluation.settings)) or "the model's context"
        notes.append(
            f"{_pluralize(score.cut_off, 'episode')} cut off at {limits}; format compliance is over "
            "complete replies"
        )
    if score.contaminated:
        words = f"left out of every figure: {evaluation.not_in} has the task or asks the same"
        notes.append(f"{_pluralize(score.contaminated, 'episode')} {words}")
    return [f"{score.label}: {note}." for note in notes]


def _token_limits(settings: JsonObject) -> list[str]:
    """The options that may have cut an episode off, as they were set."""
    names = ("max_tokens", "max_episode_tokens")
    return [f"--{name.replace('_', '-')} {settings[name]}" for name in names if settings.get(name)]


def _pluralize(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
