"""The output of `ludus runs`: a table with one line per run."""

from __future__ import annotations

from typing import Any

from ludus.cli.display.console import console
from ludus.cli.display.formatting import format_count, format_dollars
from ludus.cli.display.run_summary import format_reward

_TEXT_COLUMNS = ("environment", "agent")
_MIN_TEXT_WIDTH = 11


def print_runs(summaries: list[dict[str, Any]]) -> None:
    """Print a table of runs, without rich's Table, which would cut paths short."""
    from rich.text import Text

    out = console()
    rows = _fit_columns([_table_row(summary) for summary in summaries], out.width)
    header = dict(zip(rows[0], rows[0], strict=True))
    widths = {name: max(len(row[name]) for row in [header, *rows]) for name in header}
    for row in [header, *rows]:
        cells = [
            cell.ljust(widths[name])
            if name in ("run", *_TEXT_COLUMNS)
            else cell.rjust(widths[name])
            for name, cell in row.items()
        ]
        line = Text("  ".join(cells).rstrip(), style="bold" if row is header else "")
        out.print(line, soft_wrap=True)


def _fit_columns(rows: list[dict[str, str]], width: int) -> list[dict[str, str]]:
    """Drop empty columns, and truncate text columns to the width that the others leave."""
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    fixed = sum(widths[name] + 2 for name in names if name not in _TEXT_COLUMNS)
    limit = max(_MIN_TEXT_WIDTH, (width - fixed) // len(_TEXT_COLUMNS) - 2)

    def fit(name: str, text: str) -> str:
        is_cut = name in _TEXT_COLUMNS and len(text) > limit
        return f"{text[: limit - 1]}…" if is_cut else text

    return [{name: fit(name, row[name]) for name in names} for row in rows]


def _table_row(summary: dict[str, Any]) -> dict[str, str]:
    usage, agent = summary["usage"], summary["agent"]
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    planned = f"/{summary['planned']:,}" if summary["left"] else ""
    return {
        "run": str(summary["run"]),
        "environment": str(summary["environment"]),
        "agent": str(agent.get("model") or agent.get("provider", "")),
        "episodes": f"{summary['episodes']:,}{planned}",
        "reward ± std. error": format_reward(summary),
        "broken": f"{summary['broken']:,}" if summary["broken"] else "",
        "tokens": format_count(tokens) if tokens else "",
        "cost": format_dollars(usage["cost"]),
    }
