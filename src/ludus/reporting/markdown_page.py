"""A report as Markdown, for a pull request or an issue. Charts become a line or a table."""

from __future__ import annotations

import json

from ludus.data.hub import code_block, inline_code, markdown_table, to_single_line
from ludus.data.sparkline import sparkline
from ludus.reporting.document import (
    REPORT_MARK,
    BarChart,
    Chart,
    Document,
    Histogram,
    IntervalChart,
    LineChart,
    Section,
    Transcript,
)

_SIGNS = {"good": "✅", "problem": "❌", "note": "🟡"}


def render_markdown(document: Document) -> str:
    """Return the file."""
    overview = [
        f"{number}. **{_plain(section.kind)}: {_plain(section.title)}**: {_plain(section.headline)}"
        for number, section in enumerate(document.sections, 1)
    ]
    parts = [
        f"# {_plain(document.title)}",
        f"<!-- {REPORT_MARK} -->",
        f"{document.created}, {document.versions}",
        "\n".join(overview),
        *(part for section in document.sections for part in _section(section)),
    ]
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """One line in which Markdown and HTML of others have no effect."""
    line = to_single_line(text)
    for character in "\\`*_[]<>#":
        line = line.replace(character, f"\\{character}")
    return line


def _section(section: Section) -> list[str]:
    parts = [
        f"## {_plain(section.kind)}: {_plain(section.title)}",
        inline_code(section.path),
        markdown_table(("", ""), [(_plain(name), _plain(value)) for name, value in section.facts]),
        "\n".join(f"- {_SIGNS[each.kind]} {_plain(each.text)}" for each in section.findings),
        *map(_chart, section.charts),
    ]
    for table in section.tables:
        rows = [[_plain(cell) for cell in row] for row in table.rows]
        header = [_plain(cell) for cell in table.header]
        parts.append(f"**{_plain(table.title)}**\n\n{markdown_table(header, rows)}")
    parts += [_plain(note) for note in section.notes]
    parts += map(_transcript, section.transcripts)
    if section.command:
        parts.append(code_block(section.command, "bash"))
    if section.settings:
        settings = json.dumps(section.settings, indent=2, ensure_ascii=False, default=str)
        parts.append(
            f"<details><summary>Settings</summary>\n\n{code_block(settings, 'json')}\n\n</details>"
        )
    return [part for part in parts if part]


def _chart(chart: Chart) -> str:
    title = f"**{_plain(chart.title)}**"
    match chart:
        case LineChart():
            lines = [
                f"- {_plain(each.label)}: {sparkline([y for _, y in each.points])} "
                f"{each.points[0][1]:.4g} → {each.points[-1][1]:.4g}"
                for each in chart.series
            ]
            return f"{title}\n\n" + "\n".join(lines)
        case Histogram():
            low, high = min(chart.values), max(chart.values)
            return f"{title}: {len(chart.values):,} values from {low:g} to {high:g}"
        case BarChart():
            rows = [(_plain(label), f"{count:,}") for label, count in chart.rows]
            return markdown_table((_plain(chart.title), ""), rows)
        case IntervalChart():
            return ""  # The table of results says the same.


def _transcript(transcript: Transcript) -> str:
    lines = []
    for turn in transcript.turns:
        content = [turn.reasoning, turn.text, *turn.calls, *("[image]" for _ in turn.images)]
        lines.append(f"[{turn.role}]\n" + "\n".join(filter(None, content)))
    summary = f"{transcript.title} ({transcript.detail})" if transcript.detail else transcript.title
    text = "\n\n".join(lines)
    # In a summary only HTML is read.
    safe = to_single_line(summary).replace("&", "&amp;").replace("<", "&lt;")
    return (
        f"<details><summary>{_SIGNS[transcript.kind]} {safe}</summary>\n\n"
        f"{code_block(text, 'text')}\n\n</details>"
    )
