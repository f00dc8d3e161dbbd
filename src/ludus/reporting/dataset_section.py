"""The section of a data set: what was kept, what was left out and why, and some rows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.curation.output_dir import METADATA_FILE
from ludus.data.jsonable import object_field
from ludus.data.jsonl import numbered_lines
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


def dataset_section(path: Path, *, samples: int) -> Section:
    """Return the section about the output of `ludus curate`."""
    try:
        metadata = from_json((path / METADATA_FILE).read_bytes())
        report = object_field(metadata, "report")
        steps, rows = report.get("steps") or [], object_field(report, "rows")
        episodes, kept = int(report.get("episodes", 0)), int(report.get("kept", 0))
        settings = object_field(metadata, "settings")
        removed = [(step["reason"], step["detail"], step["removed"]) for step in steps]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path / METADATA_FILE} cannot be read: {error}.") from None
    sizes = ", ".join(f"{count:,} {split}" for split, count in rows.items())
    facts = [
        ("Rows", sizes),
        ("Episodes read", f"{episodes:,}"),
        ("Episodes kept", f"{kept:,}"),
        ("Format", str(settings.get("to", ""))),
        ("Runs", ", ".join(map(str, metadata.get("runs") or ()))),
    ]
    left = [(reason, detail, f"{count:,}") for reason, detail, count in removed if count]
    kept_after = [(f"after {step['reason']}", step["left"]) for step in steps if step["removed"]]
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
        transcripts=_read_rows(path / "train.jsonl", samples),
        settings={key: value for key, value in settings.items() if value not in (None, [], {})},
    )


def _read_rows(file: Path, samples: int) -> list[Transcript]:
    """The first rows; of pairs, the chosen reply beside the rejected one."""
    if not file.is_file():
        return []
    transcripts = []
    for number, line in islice(numbered_lines(file), samples):
        row = from_json(line)
        prompt = _messages(row, "prompt")
        for field, title, kind in _FIELDS:
            if messages := _messages(row, field):
                reward = row.get(f"{field}_reward", row.get("reward"))
                detail = f"reward {reward:g}" if isinstance(reward, int | float) else ""
                turns = build_turns([*prompt, *messages])
                transcripts.append(Transcript(f"Row {number}{title}", kind, detail, turns))
    return transcripts


def _messages(row: Any, field: str) -> list[Mapping[str, Any]]:
    messages = row.get(field) if isinstance(row, Mapping) else None
    if not isinstance(messages, list):
        return []
    return [message for message in messages if isinstance(message, Mapping)]
