"""The section of a trained model: its curves, its diagnosis, and episodes of GRPO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic_core import from_json

from ludus.data.json_files import object_field
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import (
    EPISODES_FILE,
    RECORD_FILE,
    LogEntry,
    log_points,
    metric_values,
    read_log,
    summarize_training,
)
from ludus.diagnose import Verdict, read_run
from ludus.diagnose.diagnosis import format_verdict
from ludus.errors import NameFlags, RunError
from ludus.reporting.document import Chart, Finding, LineChart, Section, Series
from ludus.reporting.run_section import episode_charts
from ludus.reporting.transcripts import summarize_episodes

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
_KINDS = {"sft": "SFT", "dpo": "DPO", "grpo": "GRPO"}


def training_section(path: Path, *, samples: int, name_flags: NameFlags) -> Section:
    """Return the section about the output of `ludus train`."""
    try:
        record = from_json((path / RECORD_FILE).read_bytes())
        kind = record["kind"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path / RECORD_FILE} cannot be read: {error}.") from None
    lines = list(read_log(path))
    findings, headline = list[Finding](), summarize_training(record, lines)
    if kind == "grpo":
        findings = _diagnose(path, name_flags)
    charts, facts = _curves(lines), _facts(record, lines)
    transcripts = []
    if (path / EPISODES_FILE).is_file():
        summary = summarize_episodes(path / EPISODES_FILE, samples)
        charts += episode_charts(summary)
        facts += [("Mean reward of all episodes (95 % interval)", summary.format_mean_reward())]
        transcripts = summary.transcripts()
    return Section(
        kind=f"{_KINDS.get(kind, kind)} training",
        title=path.name,
        path=str(path),
        headline=headline,
        facts=facts,
        command=record.get("command"),
        findings=findings,
        charts=charts,
        transcripts=transcripts,
        settings=object_field(record, "settings"),
    )


def _facts(record: JsonObject, lines: Sequence[LogEntry]) -> list[tuple[str, str]]:
    data, environment = object_field(record, "data"), object_field(record, "environment")
    final, test_losses = object_field(record, "metrics"), metric_values(lines, "eval_loss")
    seconds, tokens = final.get("seconds"), final.get("tokens")
    facts = [
        ("Model", str(record.get("model", ""))),
        ("Data", f"{data['path']}, {data.get('rows', 0):,} rows" if data.get("path") else ""),
        ("Environment", str(environment.get("spec", ""))),
        ("Steps", f"{final['steps']:,}" if final.get("steps") is not None else "not finished"),
        # Also here, because a training of one step has no curve.
        ("Test loss", f"{test_losses[-1]:.4g}" if test_losses else ""),
        ("Time", _format_time(seconds) if seconds else ""),
        ("Tokens", f"{tokens:,}" if tokens else ""),
        ("Device", ", ".join(map(str, record.get("devices") or ()))),
    ]
    return [(title, value) for title, value in facts if value]


def _format_time(seconds: float) -> str:
    return f"{seconds / 60:,.1f} min" if seconds >= 60 else f"{seconds:.1f} s"


def _curves(lines: Sequence[LogEntry]) -> list[Chart]:
    charts: list[Chart] = []
    for title, metrics in _CURVES:
        series = [
            Series(label, points)
            for metric, label in metrics.items()
            if (points := log_points(lines, metric))
        ]
        # Beside a line, a single point is worth showing: the test loss at the end.
        if any(len(each.points) > 1 for each in series):
            charts.append(LineChart(title, series))
    return charts


def _diagnose(path: Path, name_flags: NameFlags) -> list[Finding]:
    try:
        diagnosis = read_run(path).diagnose()
    except RunError as error:
        return [Finding("note", str(error))]
    return [
        Finding(verdict.kind, name_flags(_sentence(verdict), ("train", "grpo")))
        for verdict in diagnosis.verdicts
    ]


def _sentence(verdict: Verdict) -> str:
    text = format_verdict(verdict)
    return text[:1].upper() + text[1:]
