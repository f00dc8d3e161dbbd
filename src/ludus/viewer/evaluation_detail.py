"""What the page of an evaluation shows: verdicts, tables, intervals and curves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from ludus.data.task_mean import MeanEstimate
from ludus.data.tool_schema import JsonObject
from ludus.errors import NameFlags
from ludus.evaluation.result_curves import build_level_curves, build_pass_curves
from ludus.evaluation.results import Evaluation
from ludus.evaluation.table import build_notes, build_slice_tables, build_tables, describe_method


def describe_evaluation(evaluation: Evaluation, name_flags: NameFlags) -> JsonObject:
    """The results, with the tables and sentences that `ludus eval` prints."""
    scores = evaluation.scores
    return {
        "verdicts": [
            {"outcome": outcome.value, "text": text}
            for outcome, text in evaluation.describe_verdicts()
        ],
        "notes": [name_flags(note, ("eval",)) for note in build_notes(evaluation)],
        "method": describe_method(evaluation),
        "results": asdict(build_tables(evaluation)[0]),
        "slices": list(map(asdict, build_slice_tables(evaluation))),
        "candidates": [
            {"label": score.label, "agent": score.agent, "episodes": score.episodes}
            for score in scores
        ],
        "metrics": [
            {
                "title": metric.title,
                "is_share": metric.is_share,
                "estimates": _as_json(score.estimates.get(metric.name) for score in scores),
                "deltas": _as_json(score.deltas.get(metric.name) for score in scores),
            }
            for metric in evaluation.shown_metrics
        ],
        "curves": [
            {
                "title": curves.title,
                "is_share": curves.metric.is_share,
                "x_title": curves.x_title,
                "labels": curves.labels,
                "candidates": list(map(_as_json, curves.candidates)),
            }
            for curves in (*build_level_curves(evaluation), *build_pass_curves(evaluation))
        ],
    }


def _as_json(estimates: Iterable[MeanEstimate | None]) -> list[JsonObject | None]:
    return [None if each is None else each.as_json() for each in estimates]
