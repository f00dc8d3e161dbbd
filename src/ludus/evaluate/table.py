"""The figures in words: for a few candidates side by side, for many one below the other.

Plain text in cells; a terminal and a Markdown file draw the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ludus.data.bootstrap import MIN_SAMPLES
from ludus.data.tools import JsonObject
from ludus.evaluate.evaluation import Evaluation, Score
from ludus.evaluate.metrics import Estimate, Metric

_NOTHING = "-"
_NO_INTERVAL = "(no interval)"
_FEW = 3
"""Candidates that can be read side by side."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: the names of its columns, and its rows."""

    head: list[str]
    rows: list[list[str]]


def sheets_of(evaluation: Evaluation) -> list[Sheet]:
    """The same figures, in the shape that reads best first; the last is the narrowest."""
    few = len(evaluation.scores) <= _FEW
    return [side_by_side(evaluation), below_each_other(evaluation)][0 if few else 1 :]


def side_by_side(evaluation: Evaluation) -> Sheet:
    """A row a metric, a column a candidate, then a column for what changed against the base."""
    scores, others = evaluation.scores, evaluation.scores[1:]
    deltas = ["Delta"] if len(others) == 1 else [f"Delta {score.label}" for score in others]
    rows = [
        [
            metric.title,
            *(_value(score, metric) for score in scores),
            *(_delta(score, metric) for score in others),
        ]
        for metric in evaluation.shown
    ]
    if evaluation.shown:
        rows.append(["n", *_counts(evaluation)])
    return Sheet(["Metric", *(score.label for score in scores), *deltas], rows)


def below_each_other(evaluation: Evaluation) -> Sheet:
    """A row for each metric of each candidate."""
    rows = [
        [
            "" if number else metric.title,
            score.label,
            _value(score, metric),
            _delta(score, metric) if number else "",
            _count(score.estimates.get(metric.name)),
        ]
        for metric in evaluation.shown
        for number, score in enumerate(evaluation.scores)
    ]
    return Sheet(["Metric", "Candidate", "Value", "Delta", "n"], rows)


def notes_of(evaluation: Evaluation) -> list[str]:
    """What is not in the figures, and why."""
    notes = [note for score in evaluation.scores for note in _notes(score, evaluation)]
    notes += [
        f"{environment}: tasks open alike and cannot be told apart by what they ask, so only those "
        f"are left out that {evaluation.not_in} has with the same seed and arguments."
        for environment in evaluation.alike
    ]
    if not evaluation.complete:
        words = f"Not everything is played ({evaluation.stopped}); the same command goes on."
        notes.append(words)
    return notes


def method_of(evaluation: Evaluation) -> str:
    """How the figures are to be read."""
    base = evaluation.scores[0].label
    against = (
        f" Delta is against {base}, over the tasks that both have."
        if len(evaluation.scores) > 1
        else ""
    )
    lacking = any(_NO_INTERVAL in cell for row in side_by_side(evaluation).rows for cell in row)
    why = (
        f" No interval: fewer than {MIN_SAMPLES} tasks, or all of them the same." if lacking else ""
    )
    return f"In brackets: 95% confidence intervals.{why}{against}"


def _value(score: Score, metric: Metric) -> str:
    unit = "%" if metric.share else ""
    return _told(score.estimates.get(metric.name), metric, unit)


def _delta(score: Score, metric: Metric) -> str:
    unit = " pp" if metric.share else ""
    return _told(score.deltas.get(metric.name), metric, unit, sign="+")


def _told(found: Estimate | None, metric: Metric, unit: str, *, sign: str = "") -> str:
    """The value, and its interval in brackets."""
    if found is None:
        return _NOTHING
    digits = 1 if metric.share or metric.name == "reply_tokens" else 3
    scale, form = 100 if metric.share else 1, f"{sign},.{digits}f"
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
    return f"{most:,}" if most else _NOTHING


def _notes(score: Score, evaluation: Evaluation) -> list[str]:
    notes = []
    if score.remaining:
        notes.append(f"{_many(score.remaining, 'episode')} still to be played")
    if score.broken:
        notes.append(
            f"{_many(score.broken, 'episode')} broken and left out of every figure "
            "(--retry-broken plays them again)"
        )
    if score.unscored:
        words = "unscored and left out of accuracy and reward"
        notes.append(f"{_many(score.unscored, 'episode')} {words}")
    if score.cut_off:
        limits = " or ".join(_token_limits(evaluation.settings)) or "the model's context"
        notes.append(
            f"{_many(score.cut_off, 'episode')} cut off at {limits}; format compliance is over "
            "complete replies"
        )
    if score.known:
        words = f"left out of every figure: {evaluation.not_in} has the task or asks the same"
        notes.append(f"{_many(score.known, 'episode')} {words}")
    return [f"{score.label}: {note}." for note in notes]


def _token_limits(settings: JsonObject) -> list[str]:
    """The options that may have cut an episode off, as they were set."""
    names = ("max_tokens", "max_episode_tokens")
    return [f"--{name.replace('_', '-')} {settings[name]}" for name in names if settings.get(name)]


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
