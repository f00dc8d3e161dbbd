"""The results of an evaluation as tables and as README.md.

A table has a column per candidate, or a row for many of them. Cells are plain text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ludus.data.hub import code_block, inline_code, markdown_table, to_single_line
from ludus.data.interval_estimates import MIN_SAMPLES, MeanEstimate
from ludus.evaluation.metrics import Metric
from ludus.evaluation.results import NO_INTERVAL, Evaluation, format_difference

_NO_VALUE = "-"
_MAX_SIDE_BY_SIDE = 3
"""Candidates up to which the wide table is readable."""


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Column names and rows."""

    header: list[str]
    rows: list[list[str]]


def build_tables(evaluation: Evaluation) -> list[ResultTable]:
    """Build tables of the results: the most readable first, the narrowest last."""
    if len(evaluation.scores) <= _MAX_SIDE_BY_SIDE:
        return [build_wide_table(evaluation), build_long_table(evaluation)]
    return [build_long_table(evaluation)]


def build_wide_table(evaluation: Evaluation) -> ResultTable:
    """Return a row per metric and a column per candidate, then a column per delta."""
    scores, others = evaluation.scores, evaluation.scores[1:]
    deltas = ["Delta"] if len(others) == 1 else [f"Delta {score.label}" for score in others]
    rows = [
        [
            metric.title,
            *(_result_cell(score.metrics, metric) for score in scores),
            *(_delta_cell(score.deltas, metric) for score in others),
        ]
        for metric in evaluation.shown_metrics
    ]
    if evaluation.shown_metrics:
        # The largest n of all metrics: some apply to fewer episodes.
        counts = [_count_cell(*score.metrics.values()) for score in scores]
        rows.append(["n", *counts, *(_count_cell(*score.deltas.values()) for score in others)])
    return ResultTable(["Metric", *(score.label for score in scores), *deltas], rows)


def build_long_table(evaluation: Evaluation) -> ResultTable:
    """Return a row for each metric of each candidate."""
    rows = [
        [
            "" if number else metric.title,
            score.label,
            _result_cell(score.metrics, metric),
            _delta_cell(score.deltas, metric) if number else "",
            _count_cell(score.metrics.get(metric.name)),
        ]
        for metric in evaluation.shown_metrics
        for number, score in enumerate(evaluation.scores)
    ]
    return ResultTable(["Metric", "Candidate", "Value", "Delta", "n"], rows)


def build_slice_tables(evaluation: Evaluation) -> list[ResultTable]:
    """Return a table per metric: a row for each environment and each difficulty."""
    scores = evaluation.scores
    deltas = [f"Delta {score.label}" for score in scores[1:]] if len(scores) > 2 else ["Delta"]
    indent = "· " if len({each.environment for each in evaluation.slices}) > 1 else ""
    tables = []
    for metric in evaluation.verdict_metrics if evaluation.slices else ():
        rows = [
            [
                f"{indent}{each.level}" if each.level is not None else each.environment,
                *(_result_cell(own, metric) for own in each.metrics),
                *(_delta_cell(own, metric) for own in each.deltas[1:]),
                _count_cell(*(own.get(metric.name) for own in each.metrics)),
            ]
            for each in evaluation.slices
        ]
        labels = [score.label for score in scores]
        header = [metric.title, *labels, *(deltas if len(scores) > 1 else []), "n"]
        tables.append(ResultTable(header, rows))
    return tables


def build_notes(evaluation: Evaluation) -> list[str]:
    """Build the notes below the tables: what is excluded from the results, and why."""
    settings = evaluation.settings
    limits = [
        f"`{name}` {settings[name]}"
        for name in ("max_tokens", "max_episode_tokens")
        if settings.get(name)
    ]
    notes = []
    for score in evaluation.scores:
        counts = {
            "still to be played": score.remaining,
            "broken and left out of all metrics; `retry_broken` plays them again": score.broken,
            "unscored and left out of accuracy and reward": score.unscored,
            f"cut off at {' or '.join(limits) or 'the end of the context'}; format compliance "
            "covers only complete replies": score.cut_off,
            f"left out of all metrics: {evaluation.exclude_tasks_in} has the same task or "
            "question": score.contaminated,
        }
        notes += [
            f"{score.label}: {count:,} {'episode' if count == 1 else 'episodes'} {note}."
            for note, count in counts.items()
            if count
        ]
    if not evaluation.complete:
        notes.append(f"Not complete ({evaluation.stopped}). Run the same command to continue.")
    return notes


def describe_method(evaluation: Evaluation) -> str:
    """Explain the intervals and deltas in the tables."""
    text = "In brackets: 95% confidence intervals."
    if any(NO_INTERVAL in cell for row in build_wide_table(evaluation).rows for cell in row):
        text += f" No interval: fewer than {MIN_SAMPLES} tasks, or all with the same value."
    if len(evaluation.scores) > 1:
        text += f" Delta: difference from {evaluation.scores[0].label}, over the common tasks."
    return text


def render_report(evaluation: Evaluation) -> str:
    """Render the README.md of an evaluation, with its tables."""
    settings, table = evaluation.settings, build_tables(evaluation)[0]
    labels = ", ".join(score.label for score in evaluation.scores)
    repeats = f", each task {settings['group_size']} times" if settings["group_size"] > 1 else ""
    candidate_rows = [
        (
            to_single_line(score.label),
            ", ".join(f"{key} {inline_code(value)}" for key, value in score.agent.items()),
            f"{score.episodes:,}",
            f"{score.broken:,}",
            f"{score.unscored:,}",
            f"{score.contaminated:,}",
        )
        for score in evaluation.scores
    ]
    versions = ", ".join(f"{name} {version}" for name, version in evaluation.versions.items())
    parts = (
        f"# {to_single_line(settings['environment'])}: {labels}",
        f"{settings['episodes']:,} episodes of {inline_code(settings['environment'])} with the "
        f"seed {settings['seed']}{repeats}, the same for every candidate. "
        f"A task is solved by a reward of {evaluation.solved_at:g} or more.",
        _markdown_table(table),
        "\n".join(f"- {to_single_line(verdict)}" for _, verdict in evaluation.describe_verdicts()),
        describe_method(evaluation),
        "\n".join(f"- {to_single_line(note)}" for note in build_notes(evaluation)),
        "## By environment and difficulty" if evaluation.slices else None,
        *map(_markdown_table, build_slice_tables(evaluation)),
        "## Candidates",
        markdown_table(
            ("candidate", "agent", "episodes", "broken", "unscored", "excluded"), candidate_rows
        ),
        "## Reproduce",
        code_block(evaluation.command, "bash") if evaluation.command else None,
        "Settings that determine the episodes:",
        code_block(json.dumps(settings, indent=2, ensure_ascii=False), "json"),
        f"Versions: {versions}.",
    )
    return "\n\n".join(filter(None, parts)) + "\n"


def _markdown_table(table: ResultTable) -> str:
    # Titles may contain the name of an environment, which its server chooses freely.
    rows = [[to_single_line(title), *cells] for title, *cells in table.rows]
    return markdown_table(table.header, rows)


def _result_cell(estimates: Mapping[str, MeanEstimate], metric: Metric) -> str:
    """A value with its interval in brackets: 80.0% (67.0 to 88.8)."""
    if (estimate := estimates.get(metric.name)) is None:
        return _NO_VALUE
    value = metric.format_value(estimate.value)
    if estimate.low is None or estimate.high is None:
        return f"{value} {NO_INTERVAL}"
    low, high = map(metric.format_number, (estimate.low, estimate.high))
    return f"{value} ({low} to {high})"


def _delta_cell(deltas: Mapping[str, MeanEstimate], metric: Metric) -> str:
    """A difference from the first candidate with its interval: +12.0 pp (+3.1 to +20.4)."""
    delta = deltas.get(metric.name)
    return _NO_VALUE if delta is None else format_difference(delta, metric)


def _count_cell(*estimates: MeanEstimate | None) -> str:
    n = max((each.n for each in estimates if each is not None), default=0)
    return f"{n:,}" if n else _NO_VALUE
