"""The section of a data set: what was kept, what was left out and why, and some rows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.data.json_files import numbered_lines, object_field
from ludus.data.locked_database import ParquetRows
from ludus.data.stage_output import CURATION_FILE, StageOutput
from ludus.errors import RunError
from ludus.reporting.document import BarChart, FindingKind, Section, Table, Transcript
from ludus.reporting.transcripts import build_turns

_FIELDS: tuple[tuple[str, str, FindingKind], ...] = (
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
        steps, rows = report.get("steps") or [], object_field(report, "rows")
        episodes, kept = int(report.get("episodes", 0)), int(report.get("kept", 0))
        removed = [(step["reason"], step["detail"], step["removed"]) for step in steps]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path / CURATION_FILE} cannot be read: {error}.") from None
    sizes = ", ".join(f"{count:,} {split}" for split, count in rows.items())
    facts = [
        ("Rows", sizes),
        ("Episodes read", f"{episodes:,}"),
        ("Episodes kept", f"{kept:,}"),
        ("Format", str(settings.get("to", ""))),
        ("Runs", ", ".join(map(str, metadata.get("runs") or ()))),
    ]
    left = [(reason, detail, f"{count:,}") for reason, detail, count in removed if count]
    kept_after = [
        (f"after {step['reason']}", step["remaining"]) for step in steps if step["removed"]
    ]
    funnel = [("read", episodes), *kept_after]
    return Section(
        kind="Data set",
        title=path.name,
        path=str(path),
        headline=f"{sum(rows.values()):,} rows from {episodes:,} episodes",
        facts=[(title, value) for title, value in facts if value],
        command=metadata.get("command"),
        charts=[BarChart("Episodes, from all to kept", funnel)],
        tables=[Table("Left out", ("reason", "condition", "episodes"), left)] if left else [],
        transcripts=_read_rows(output.rows.get("train"), samples),
        settings={key: value for key, value in settings.items() if value not in (None, [], {})},
    )


def _read_rows(file: Path | None, samples: int) -> list[Transcript]:
    """The first rows; of pairs, the chosen reply beside the rejected one."""
    if file is None:
        return []
    if file.suffix == ".parquet":
        with ParquetRows(file) as parquet:
            rows = parquet.read(0, samples)
    else:
        rows = [_parse_row(line) for _, line in islice(numbered_lines(file), samples)]
    transcripts = []
    for number, row in enumerate(rows, 1):
        prompt = _messages(row, "prompt")
        for field, title, kind in _FIELDS:
            if messages := _messages(row, field):
                reward = row.get(f"{field}_reward", row.get("reward"))
                detail = f"reward {reward:g}" if isinstance(reward, int | float) else ""
                turns = build_turns([*prompt, *messages])
                transcripts.append(Transcript(f"Row {number}{title}", kind, detail, turns))
    return transcripts


def _parse_row(line: bytes) -> Any:
    try:
        return from_json(line)
    except ValueError:  # `ludus lint` names such rows.
        return None


def _messages(row: Any, field: str) -> list[Mapping[str, Any]]:
    messages = row.get(field) if isinstance(row, Mapping) else None
    if not isinstance(messages, list):
        return []
    return [message for message in messages if isinstance(message, Mapping)]
