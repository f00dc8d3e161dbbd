"""The output of `ludus runs`: a table with one line per run."""

from __future__ import annotations

import os
from typing import Any

from ludus.cli.display.console import console
from ludus.cli.display.formatting import format_count, format_dollars, format_reward

_TEXT_COLUMNS = ("environment", "agent")
_MIN_TEXT_WIDTH = 11


def print_runs(summaries: list[dict[str, Any]]) -> None:
    """Print a table of runs, without rich's Table, which would cut paths short.

    Empty columns are dropped; text columns are truncated to the width that the others leave.
    """
    from rich.text import Text

    out = console()
    rows = [_table_row(summary) for summary in summaries]
    header = {name: name for name in rows[0] if any(row[name] for row in rows)}
    rows = [{name: row[name] for name in header} for row in rows]
    widths = {name: max(len(row[name]) for row in [header, *rows]) for name in header}
    fixed = sum(width + 2 for name, width in widths.items() if name not in _TEXT_COLUMNS)
    # A pipe has no width.
    has_width = out.is_terminal or "COLUMNS" in os.environ
    limit = max(_MIN_TEXT_WIDTH, (out.width - fixed) // len(_TEXT_COLUMNS) - 2)
    for name in header.keys() & _TEXT_COLUMNS if has_width else ():
        for row in rows:
            if len(row[name]) > limit:
                row[name] = f"{row[name][: limit - 1]}…"
        widths[name] = min(widths[name], limit)
    for row in [header, *rows]:
        cells = [
            cell.ljust(widths[name])
            if name in ("run", "kind", *_TEXT_COLUMNS)
            else cell.rjust(widths[name])
            for name, cell in row.items()
        ]
        line = Text("  ".join(cells).rstrip(), style="bold" if row is header else "")
        out.print(line, soft_wrap=True)


def _table_row(summary: dict[str, Any]) -> dict[str, str]:
    usage, agent = summary["usage"], summary["agent"]
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    planned = f"/{summary['planned']:,}" if summary["remaining"] else ""
    return {
        "run": str(summary["run"]),
        "kind": str(summary["kind"]),
        "environment": str(summary["environment"]),
        "agent": str(agent.get("model") or agent.get("provider", "")),
        "episodes": f"{summary['episodes']:,}{planned}",
        "mean reward (95 % interval)": format_reward(summary),
        "broken": f"{summary['broken']:,}" if summary["broken"] else "",
        "tokens": format_count(tokens) if tokens else "",
        "cost": format_dollars(usage["cost"]),
    }
