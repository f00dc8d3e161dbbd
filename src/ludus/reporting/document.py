"""The content of a report: sections with facts, findings and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ludus.data.tool_schema import JsonObject

FindingKind = Literal["good", "problem", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict, as a sentence or two."""

    kind: FindingKind
    text: str


@dataclass(frozen=True, slots=True)
class LineChart:
    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    """The points of each line by its label."""


@dataclass(frozen=True, slots=True)
class Histogram:
    title: str
    values: Sequence[float]


Chart = LineChart | Histogram


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of a transcript."""

    role: str
    text: str
    reasoning: str = ""
    calls: Sequence[str] = ()
    images: Sequence[str] = ()
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    title: str
    kind: FindingKind
    detail: str
    """Reward, stop reason and the like."""
    turns: Sequence[Turn]


@dataclass(frozen=True, slots=True)
class Section:
    """One folder: its kind, results and samples."""

    kind: str
    """Run, data set, training or evaluation."""
    title: str
    path: str
    headline: str
    """The most important result, in one line."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts by title; empty ones are left out."""
    command: str | None = None
    findings: Sequence[Finding] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    transcripts: Sequence[Transcript] = ()
    settings: JsonObject = field(default_factory=dict)


REPORT_MARK = "Ludus report"
"""Marks the head of every report, so that it can be recognized."""
