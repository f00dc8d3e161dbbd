"""The figures in words: a row a metric, a column a candidate, then what changed against the base.

Plain text in cells; a terminal and a Markdown file draw the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ludus.evaluate.evaluation import Evaluation, Score
from ludus.evaluate.metrics import Estimate, Metric

_NOTHING = "-"


def head_of(evaluation: Evaluation) -> list[str]:
    """The names of the columns."""
    labels = [score.label for score in evaluation.scores]
    deltas = ["Delta"] if len(labels) == 2 else [f"Delta {label}" for label in labels[1:]]
    return ["Metric", *labels, *deltas]


def rows_of(evaluation: Evaluation) -> list[list[str]]:
    """One row for each metric, and at last how many episodes the first of them is the mean of."""
    rows = [_row(metric, evaluation.scores) for metric in evaluation.shown]
    if evaluation.shown:
        name = evaluation.shown[0].name
        rows.append(["n", *_cells(evaluation.scores, name, lambda found: f"{found.n:,}")])
    return rows


def notes_of(evaluation: Evaluation) -> list[str]:
    """What is not in the figures, and why."""
    notes = [note for score in evaluation.scores for note in _notes(score, evaluation)]
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
    return f"In brackets: 95% intervals.{against}"


def _row(metric: Metric, scores: Sequence[Score]) -> list[str]:
    return [metric.title, *_cells(scores, metric.name, _told(metric), _told(metric, signed=True))]


def _cells(
    scores: Sequence[Score],
    name: str,
    tell: Callable[[Estimate], str],
    tell_delta: Callable[[Estimate], str] | None = None,
) -> list[str]:
    """A cell for each candidate, and one for each delta."""
    own = [(score.estimates.get(name), tell) for score in scores]
    deltas = [(score.deltas.get(name), tell_delta or tell) for score in scores[1:]]
    return [_NOTHING if found is None else say(found) for found, say in own + deltas]


def _told(metric: Metric, *, signed: bool = False) -> Callable[[Estimate], str]:
    scale, digits, unit = (100, 1, " pp" if signed else "%") if metric.share else (1, 3, "")
    form = f"{'+' if signed else ''},.{1 if metric.name == 'reply_tokens' else digits}f"

    def told(found: Estimate) -> str:
        value = f"{scale * found.value:{form}}{unit}"
        if found.low is None or found.high is None:
            return value
        return f"{value} ({scale * found.low:{form}} to {scale * found.high:{form}})"

    return told


def _notes(score: Score, evaluation: Evaluation) -> list[str]:
    notes = []
    if score.left:
        notes.append(f"{_many(score.left, 'episode')} still to be played")
    if score.broken:
        notes.append(
            f"{_many(score.broken, 'episode')} broken and left out of every figure "
            "(--retry-broken plays them again)"
        )
    if score.unscored:
        words = "unscored and left out of accuracy and reward"
        notes.append(f"{_many(score.unscored, 'episode')} {words}")
    if score.known:
        words = f"left out of every figure: {evaluation.not_in} has the task or asks the same"
        notes.append(f"{_many(score.known, 'episode')} {words}")
    return [f"{score.label}: {note}." for note in notes]


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
