"""The overview of an entry: settings, counts, curves and results; how two differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from ludus.data.config import compare_settings
from ludus.data.interval_estimates import MeanEstimate
from ludus.data.json_files import object_field
from ludus.data.stage_output import StageOutput
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import LogEntry, metric, read_log, step_number
from ludus.errors import NameFlags
from ludus.evaluation.results import Evaluation, parse_evaluation
from ludus.evaluation.table import build_notes, build_slice_tables, build_tables, describe_method
from ludus.viewer.episode_index import EpisodeIndex
from ludus.viewer.episode_queries import EpisodeFilter, EpisodeQueries
from ludus.viewer.library import summarize_entry

CURVES = {
    "reward": "Reward",
    "eval_reward": "Held-out reward",
    "loss": "Loss",
    "eval_loss": "Test loss",
    "entropy": "Entropy",
    "sampled_nll": "Negative log-probability of sampled tokens",
    "length": "Sampled tokens per episode",
    "turns": "Turns per episode",
    "zero_variance": "Zero-variance groups",
    "mismatch": "Mismatch of sampler and trainer",
    "kl": "KL divergence from the start",
    "cut_off": "Cut off",
    "format": "Format compliance",
    "unscored": "Unscored",
    "mean_token_accuracy": "Token accuracy",
    "grad_norm": "Gradient norm",
    "learning_rate": "Learning rate",
    "time/step": "Seconds per step",
}
"""Titles of the curves by their key in the log, in the order of the page."""
_LINES = {"loss": ("loss", "training"), "eval_loss": ("loss", "test")}
"""Metrics that share a chart: its key, and the name of the line."""
_SCHEDULES = frozenset({"learning_rate"})
"""Values that are set and not measured: never smoothed."""
_MAX_POINTS = 1_000


def describe_entry(
    entry: StageOutput, index: EpisodeIndex, queries: EpisodeQueries, name_flags: NameFlags
) -> JsonObject:
    """Describe an entry for its page."""
    overview: JsonObject = {
        **summarize_entry(entry),
        "record": {key: value for key, value in entry.record.items() if key != "example"},
    }
    if entry.kind == "training":
        overview["curves"] = build_curves(tuple(read_log(entry.path)))
    if entry.kind == "evaluation":
        evaluation = parse_evaluation(entry.path, entry.record)
        overview["evaluation"] = describe_evaluation(evaluation, name_flags)
    if entry.episodes is not None:
        file = index.find_file(entry.shown_path)
        overview["stats"] = queries.find(EpisodeFilter(runs=(entry.shown_path,))).stats
        overview["unreadable"] = file.unreadable
        if entry.kind == "run":
            overview["curves"] = build_curves(queries.reward_curve(entry.shown_path), x="episode")
    return overview


def build_curves(entries: Sequence[LogEntry], *, x: str = "step") -> list[JsonObject]:
    """Build the curves of metrics that vary, as points; long logs are thinned out.

    A line in the chart of another metric may be a single point: the test loss at the end.
    """
    curves = []
    logged = dict.fromkeys(key for entry in entries for key in entry)
    parts = [key for key in logged if key.startswith("rewards/") and key.endswith("/mean")]
    buckets = [key for key in logged if key.startswith("curriculum/") and key.endswith("/success")]
    # With the parts of the reward, unless there is only one, and the buckets of a curriculum.
    for key in [*CURVES, *(parts if len(parts) > 1 else ()), *buckets]:
        chart, line = _LINES.get(key, (key, ""))
        points = [
            (step_number(entry), value)
            for entry in entries
            if (value := metric(entry, key)) is not None
        ]
        if len(points) < (2 if chart == key else 1):
            continue
        curves.append(
            {
                "key": key,
                "title": CURVES.get(key, key),
                "chart": chart,
                "line": line,
                "x": x,
                "is_schedule": key in _SCHEDULES,
                "points": points[:: -(-len(points) // _MAX_POINTS)],
            }
        )
    return curves


def compare_entries(first: StageOutput, second: StageOutput) -> JsonObject:
    """List the settings in which two entries differ, and count those that are the same."""
    pairs = [_comparable_settings(entry) for entry in (first, second)]
    differences, same = compare_settings(*pairs)
    return {
        "same": same,
        "differences": [
            {"setting": key, "first": before, "second": after} for key, before, after in differences
        ],
    }


def _comparable_settings(entry: StageOutput) -> JsonObject:
    """Settings and the facts of a record that are no settings of the stage."""
    record = entry.record
    facts = {name: record[name] for name in ("model", "weights", "seeds") if record.get(name)}
    data = object_field(record, "data")
    if data:
        facts["data"] = {name: data.get(name) for name in ("path", "rows", "digest")}
    if environment := object_field(record, "environment").get("spec"):
        facts["environment"] = environment
    return {**facts, **entry.settings, "versions": object_field(record, "versions")}


def describe_evaluation(evaluation: Evaluation, name_flags: NameFlags) -> JsonObject:
    """Describe an evaluation, with the tables and sentences that `ludus eval` prints."""
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
                "estimates": _as_json(score.metrics.get(metric.name) for score in scores),
                "deltas": _as_json(score.deltas.get(metric.name) for score in scores),
            }
            for metric in evaluation.shown_metrics
        ],
    }


def _as_json(estimates: Iterable[MeanEstimate | None]) -> list[JsonObject | None]:
    return [None if each is None else each.as_json() for each in estimates]
