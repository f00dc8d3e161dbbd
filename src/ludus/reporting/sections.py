"""The sections of a report: a run, a data set, a trained model, an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from pydantic_core import from_json

from ludus.data.interval_estimates import MIN_SAMPLES
from ludus.data.json_files import numbered_lines, object_field
from ludus.data.run_folder import RUN_FILE, RunFolder
from ludus.data.stage_output import CURATION_FILE, StageOutput, find_stage_output
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import (
    EPISODES_FILE,
    RECORD_FILE,
    log_points,
    metric_values,
    read_log,
    summarize_training,
)
from ludus.diagnose import format_verdict, read_run
from ludus.errors import NameFlags, RunError, similar_path_hint
from ludus.evaluation.results import Outcome, load_evaluation
from ludus.evaluation.table import (
    build_notes,
    build_slice_tables,
    build_wide_table,
    describe_method,
)
from ludus.reporting.document import (
    Chart,
    Finding,
    FindingKind,
    Histogram,
    LineChart,
    Section,
    Table,
    Transcript,
)
from ludus.reporting.transcripts import EpisodeSummary, build_turns, summarize_episodes

_MANY_BROKEN = 0.05
"""Share of broken episodes from which they are a problem of the run."""


def run_section(path: Path, episodes: Path, *, samples: int) -> Section:
    """Return the section about a run folder, or about a file of episodes."""
    summary = summarize_episodes(episodes, samples)
    settings: JsonObject = {}
    if (path / RUN_FILE).is_file():
        settings = RunFolder.open(path).metadata.settings
    agent = settings.get("agent", {})
    mean, totals = summary.format_mean_reward(), summary.totals
    findings = list[Finding]()
    if totals.broken > _MANY_BROKEN * totals.episodes:
        share = 100 * totals.broken / totals.episodes
        text = f"{totals.broken:,} episodes ({share:.0f} %) broke, and have no reward."
        findings.append(Finding("problem", text))
    if len(summary.rewards) >= MIN_SAMPLES and max(summary.rewards) <= 0:
        text = "No episode has a reward above 0: there is none to imitate."
        findings.append(Finding("note", text))
    return Section(
        kind="Run",
        title=str(settings.get("environment") or path.name),
        path=str(path),
        headline=f"{totals.episodes:,} episodes, mean reward {mean}",
        facts={
            "Environment": str(settings.get("environment", "")),
            "Agent": " ".join(str(agent[key]) for key in ("provider", "model") if agent.get(key)),
            "Episodes": f"{totals.episodes:,}",
            "Mean reward (95 % interval)": mean,
            "Attempts per task": str(settings.get("group_size", "")),
            "Tokens sampled": f"{totals.completion_tokens:,}" if totals.completion_tokens else "",
            "Cost": f"${totals.cost:,.2f}" if totals.cost else "",
        },
        findings=findings,
        charts=[Histogram("Rewards", summary.rewards)] if summary.rewards else (),
        tables=[_endings(summary)],
        transcripts=summary.transcripts,
        settings=settings,
    )


def _endings(summary: EpisodeSummary) -> Table:
    """How many episodes ended for each reason."""
    reasons = (+summary.totals.stop_reasons).most_common()
    rows = [(reason.replace("_", " "), f"{count:,}") for reason, count in reasons]
    return Table("How episodes ended", ("reason", "episodes"), rows)


_CURVES: Sequence[tuple[str, Mapping[str, str]]] = (
    ("Reward", {"reward": "training tasks", "eval_reward": "held-out tasks"}),
    ("Loss", {"loss": "training", "eval_loss": "test"}),
    (
        "Accuracy of rewards",
        {"rewards/accuracies": "training", "eval_rewards/accuracies": "held-out"},
    ),
    ("Zero-variance groups", {"zero_variance": "share"}),
    ("Entropy", {"entropy": "entropy"}),
    ("Tokens per episode", {"length": "tokens"}),
    ("KL divergence", {"kl": "KL"}),
)
"""Titles of charts, and the metrics of the log that each shows."""
_TRAININGS = {"sft": "SFT", "dpo": "DPO", "grpo": "GRPO"}


def training_section(path: Path, *, samples: int, name_flags: NameFlags) -> Section:
    """Return the section about the output of `ludus train`."""
    try:
        record = from_json((path / RECORD_FILE).read_bytes())
        kind = record["kind"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path / RECORD_FILE} cannot be read: {error}.") from None
    lines = list(read_log(path))
    charts = list[Chart]()
    for title, metrics in _CURVES:
        curves = {label: log_points(lines, metric) for metric, label in metrics.items()}
        # Beside a line, a single point is worth showing: the test loss at the end.
        if any(len(points) > 1 for points in curves.values()):
            shown = {label: points for label, points in curves.items() if points}
            charts.append(LineChart(title, shown))
    data, final = object_field(record, "data"), object_field(record, "metrics")
    test_losses = metric_values(lines, "eval_loss")
    seconds, tokens = final.get("seconds") or 0.0, final.get("tokens")
    time = f"{seconds / 60:,.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
    facts = {
        "Model": str(record.get("model", "")),
        "Data": f"{data['path']}, {data.get('rows', 0):,} rows" if data.get("path") else "",
        "Environment": str(object_field(record, "environment").get("spec", "")),
        "Steps": f"{final['steps']:,}" if final.get("steps") is not None else "not finished",
        # Also here, because a training of one step has no curve.
        "Test loss": f"{test_losses[-1]:.4g}" if test_losses else "",
        "Time": time if seconds else "",
        "Tokens": f"{tokens:,}" if tokens else "",
        "Device": ", ".join(map(str, record.get("devices") or ())),
    }
    tables, transcripts = list[Table](), list[Transcript]()
    if (path / EPISODES_FILE).is_file():
        summary = summarize_episodes(path / EPISODES_FILE, samples)
        charts += [Histogram("Rewards", summary.rewards)] if summary.rewards else []
        tables.append(_endings(summary))
        facts["Mean reward of all episodes (95 % interval)"] = summary.format_mean_reward()
        transcripts = summary.transcripts
    return Section(
        kind=f"{_TRAININGS.get(kind, kind)} training",
        title=path.name,
        path=str(path),
        headline=summarize_training(record, lines),
        facts=facts,
        command=record.get("command"),
        findings=_diagnose(path, name_flags) if kind == "grpo" else (),
        charts=charts,
        tables=tables,
        transcripts=transcripts,
        settings=object_field(record, "settings"),
    )


def _diagnose(path: Path, name_flags: NameFlags) -> list[Finding]:
    try:
        verdicts = read_run(path).diagnose().verdicts
    except RunError as error:
        return [Finding("note", str(error))]
    findings = []
    for verdict in verdicts:
        text = format_verdict(verdict)
        text = name_flags(f"{text[:1].upper()}{text[1:]}", ("train", "grpo"))
        findings.append(Finding(verdict.kind, text))
    return findings


_FINDINGS: dict[Outcome, FindingKind] = {
    Outcome.BETTER: "good",
    Outcome.WORSE: "problem",
    Outcome.NOT_RESOLVED: "note",
}


def evaluation_section(path: Path, *, samples: int, name_flags: NameFlags) -> Section:
    """Return the section about the output of `ludus eval`."""
    evaluation = load_evaluation(path)
    settings, table = evaluation.settings, build_wide_table(evaluation)
    findings = [Finding(_FINDINGS[kind], text) for kind, text in evaluation.describe_verdicts()]
    tables = [Table("Results", table.header, table.rows)]
    for by_level in build_slice_tables(evaluation):
        title = f"{by_level.header[0]} by environment and difficulty"
        tables.append(Table(title, ["", *by_level.header[1:]], by_level.rows))
    # At least one of each, unless `samples` is 0.
    per_candidate, transcripts = max(min(samples, 1), samples // len(evaluation.scores)), []
    for score in evaluation.scores:
        file = path / score.label / EPISODES_FILE
        for sample in summarize_episodes(file, per_candidate).transcripts if file.exists() else ():
            title = f"{score.label}, {sample.title[:1].lower()}{sample.title[1:]}"
            transcripts.append(Transcript(title, sample.kind, sample.detail, sample.turns))
    first, results = evaluation.scores[0], "no results"
    if values := [
        f"{metric.title.lower()} {metric.format_value(first.metrics[metric.name].value)}"
        for metric in evaluation.verdict_metrics
        if metric.name in first.metrics
    ]:
        results = ", ".join(values)
    return Section(
        kind="Evaluation",
        title=str(settings.get("environment", path.name)),
        path=str(path),
        headline=findings[0].text if findings else f"{first.label}: {results}",
        facts={
            "Environment": str(settings.get("environment", "")),
            "Candidates": ", ".join(score.label for score in evaluation.scores),
            "Episodes per candidate": f"{settings.get('episodes', 0):,}",
            "Attempts per task": str(settings.get("group_size", "")),
            "Seed of the tasks": str(settings.get("seed", "")),
        },
        command=evaluation.command,
        findings=findings,
        tables=tables,
        notes=[
            describe_method(evaluation),
            *(name_flags(note, ("eval",)) for note in build_notes(evaluation)),
        ],
        transcripts=transcripts,
        settings=settings,
    )


_CONVERSATIONS: tuple[tuple[str, str, FindingKind], ...] = (
    ("messages", "", "note"),
    ("completion", "", "note"),
    ("chosen", ", chosen", "good"),
    ("rejected", ", rejected", "problem"),
)
"""Fields of rows that hold a conversation, or what follows on `prompt`."""


def dataset_section(output: StageOutput, *, samples: int) -> Section:
    """Return the section about the output of `ludus curate`."""
    path, metadata, settings = output.path, output.record, output.settings
    if not metadata:
        raise RunError(
            f"{path} holds nothing to report: a data set needs the {CURATION_FILE} of "
            "`ludus curate`, and there is none that can be read."
        )
    try:
        report = object_field(metadata, "report")
        rows = object_field(report, "rows")
        episodes, kept = int(report.get("episodes", 0)), int(report.get("kept", 0))
        removed = [
            (step["reason"], step["detail"], f"{step['removed']:,}")
            for step in report.get("steps") or ()
            if step["removed"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path / CURATION_FILE} cannot be read: {error}.") from None
    return Section(
        kind="Data set",
        title=path.name,
        path=str(path),
        headline=f"{sum(rows.values()):,} rows from {episodes:,} episodes",
        facts={
            "Rows": ", ".join(f"{count:,} {split}" for split, count in rows.items()),
            "Episodes": f"{episodes:,}",
            "Episodes kept": f"{kept:,}",
            "Format": str(settings.get("to", "")),
            "Runs": ", ".join(map(str, metadata.get("runs") or ())),
        },
        command=metadata.get("command"),
        tables=[Table("Removed", ("reason", "condition", "episodes"), removed)] if removed else (),
        transcripts=_read_rows(output.rows.get("train"), samples),
        settings={key: value for key, value in settings.items() if value not in (None, [], {})},
    )


def _read_rows(file: Path | None, samples: int) -> list[Transcript]:
    """The first rows; of pairs, the chosen reply beside the rejected one."""
    if file is None:
        return []
    rows = list[JsonObject]()
    for _, line in islice(numbered_lines(file), samples):
        row = None
        with suppress(ValueError):  # `ludus lint` names such rows.
            row = from_json(line)
        rows.append(row if isinstance(row, dict) else {})
    transcripts = []
    for number, row in enumerate(rows, 1):
        for field, title, kind in _CONVERSATIONS:
            if messages := _messages(row, field):
                reward = row.get(f"{field}_reward", row.get("reward"))
                detail = f"reward {reward:g}" if isinstance(reward, int | float) else ""
                turns = build_turns([*_messages(row, "prompt"), *messages])
                transcripts.append(Transcript(f"Row {number}{title}", kind, detail, turns))
    return transcripts


def _messages(row: JsonObject, field: str) -> list[JsonObject]:
    messages = row.get(field)
    if not isinstance(messages, list):
        return []
    return [message for message in messages if isinstance(message, dict)]


def read_section(path: Path, *, samples: int, name_flags: NameFlags) -> Section:
    """Return the section about a folder, or about a file of episodes."""
    if not path.exists():
        hint = similar_path_hint(str(path)) or "`ludus runs` lists runs."
        raise RunError(f"There is no folder {path}. {hint}")
    output = find_stage_output(path)
    if output is not None:
        if output.kind == "training":
            return training_section(path, samples=samples, name_flags=name_flags)
        if output.kind == "evaluation":
            return evaluation_section(path, samples=samples, name_flags=name_flags)
        if output.kind == "run" and output.episodes is not None:
            return run_section(path, output.episodes, samples=samples)
        if output.kind == "dataset":
            return dataset_section(output, samples=samples)
    raise RunError(
        f"{path} holds nothing to report: it is no run, data set, trained model or evaluation."
    )
