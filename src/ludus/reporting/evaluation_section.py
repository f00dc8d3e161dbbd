"""The section of an evaluation: results with intervals, verdicts, and transcripts."""

from __future__ import annotations

from pathlib import Path

from ludus.errors import NameFlags
from ludus.evaluation.output_dir import load_evaluation
from ludus.evaluation.results import Evaluation
from ludus.evaluation.table import (
    build_notes,
    build_slice_tables,
    build_wide_table,
    describe_method,
)
from ludus.evaluation.verdict import Outcome
from ludus.reporting.document import (
    Chart,
    Finding,
    FindingKind,
    IntervalChart,
    Section,
    Table,
    Transcript,
)
from ludus.reporting.transcripts import summarize_episodes

_KINDS: dict[Outcome, FindingKind] = {
    Outcome.BETTER: "good",
    Outcome.WORSE: "problem",
    Outcome.NOT_RESOLVED: "note",
}


def evaluation_section(path: Path, *, samples: int, name_flags: NameFlags) -> Section:
    """Return the section about the output of `ludus eval`."""
    evaluation = load_evaluation(path)
    settings, table = evaluation.settings, build_wide_table(evaluation)
    findings = [Finding(_KINDS[kind], text) for kind, text in evaluation.describe_verdicts()]
    facts = [
        ("Environment", str(settings.get("environment", ""))),
        ("Candidates", ", ".join(score.label for score in evaluation.scores)),
        ("Episodes per candidate", f"{settings.get('episodes', 0):,}"),
        ("Attempts per task", str(settings.get("group_size", ""))),
        ("Seed of the tasks", str(settings.get("seed", ""))),
    ]
    tables = [Table("Results", table.header, table.rows)]
    for each in build_slice_tables(evaluation):
        title = f"{each.header[0]} by environment and difficulty"
        tables.append(Table(title, ["", *each.header[1:]], each.rows))
    return Section(
        kind="Evaluation",
        title=str(settings.get("environment", path.name)),
        path=str(path),
        headline=_headline(evaluation, findings),
        facts=[(title, value) for title, value in facts if value],
        command=evaluation.command,
        findings=findings,
        charts=_charts(evaluation),
        tables=tables,
        notes=[
            describe_method(evaluation),
            *(name_flags(note, ("eval",)) for note in build_notes(evaluation)),
        ],
        transcripts=_transcripts(path, evaluation, samples),
        settings=settings,
    )


def _headline(evaluation: Evaluation, findings: list[Finding]) -> str:
    if findings:
        return findings[0].text
    score = evaluation.scores[0]
    parts = [
        f"{metric.title.lower()} {metric.format_value(score.estimates[metric.name].value)}"
        for metric in evaluation.verdict_metrics
        if metric.name in score.estimates
    ]
    return f"{score.label}: {', '.join(parts) or 'no results'}"


def _charts(evaluation: Evaluation) -> list[Chart]:
    """A chart per metric; for levels of difficulty, one more per metric and candidate."""
    charts: list[Chart] = []
    for metric in evaluation.shown_metrics:
        rows = [
            (score.label, each.value, each.low, each.high)
            for score in evaluation.scores
            if (each := score.estimates.get(metric.name)) is not None
        ]
        if rows:
            charts.append(IntervalChart(metric.title, rows, metric.is_share))
    for metric in evaluation.verdict_metrics:
        for number, score in enumerate(evaluation.scores):
            rows = [
                (part.level or part.environment, each.value, each.low, each.high)
                for part in evaluation.slices
                if (each := part.estimates[number].get(metric.name)) is not None
            ]
            if len(rows) > 1:
                title = f"{metric.title} of {score.label}, by difficulty"
                charts.append(IntervalChart(title, rows, metric.is_share, color=number))
    return charts


def _transcripts(path: Path, evaluation: Evaluation, samples: int) -> list[Transcript]:
    """The best and the worst of each candidate: at least one of each, unless `samples` is 0."""
    per_candidate = max(min(samples, 1), samples // len(evaluation.scores))
    transcripts = []
    for score in evaluation.scores:
        file = path / score.label / "episodes.jsonl"
        if not file.is_file():
            continue
        for each in summarize_episodes(file, per_candidate).transcripts():
            title = f"{score.label}, {each.title[:1].lower()}{each.title[1:]}"
            transcripts.append(Transcript(title, each.kind, each.detail, each.turns))
    return transcripts
