"""`ludus runs`: list the runs of `ludus collect` and `ludus train grpo`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ludus.data.run_folder import RunFolder

_TEXT_COLUMNS = ("environment", "agent")
_MIN_TEXT_WIDTH = 11


def runs(
    root: Annotated[Path, typer.Argument(help="Folder that holds run folders.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per run.")] = False,
) -> None:
    """List runs with their episodes, rewards and cost.

    Example: ludus runs
    """
    from ludus.data.run_folder import find_runs
    from ludus.errors import RunError

    if not root.exists():
        raise RunError(f"There is no folder {root}. `ludus collect` creates runs.")
    folders = [*find_runs(root), *_training_runs(root)]
    if not folders:
        raise RunError(f"There is no run in {root}. `ludus collect` creates one.")
    folders.sort(key=lambda run: (run.metadata.created_at, run.path))
    summaries = [_summarize_run(run) for run in folders]
    if as_json:
        for summary in summaries:
            typer.echo(json.dumps(summary, allow_nan=False))
    else:
        _print_table(summaries)


def _training_runs(root: Path) -> Iterator[RunFolder]:
    """The episodes of GRPO trainings, as runs: their folders have no `run.json`."""
    from ludus.data.config_diff import config_digest
    from ludus.data.run_folder import RunFolder, RunMetadata, walk_folders
    from ludus.errors import RunError

    for folder in walk_folders(root):
        if not ((folder / "training.json").is_file() and (folder / "episodes.jsonl").is_file()):
            continue
        from ludus.train.output.record import read_record

        try:
            record = read_record(folder)
        except RunError:
            continue
        if record is not None and record.environment is not None:
            metadata = RunMetadata(
                kind=record.kind,
                created_at=record.created_at,
                digest=config_digest(record.settings),
                settings={"environment": record.environment.spec, "agent": {"model": record.model}},
                versions=record.versions,
            )
            yield RunFolder(folder, metadata)


def _summarize_run(run: RunFolder) -> dict[str, Any]:
    from ludus.rollout.summary import summarize_run

    settings = run.metadata.settings
    return {
        "run": str(run.path),
        "created_at": run.metadata.created_at.isoformat(),
        "environment": settings.get("environment", ""),
        "agent": settings.get("agent", {}),
        **summarize_run(run),
    }


def _print_table(summaries: list[dict[str, Any]]) -> None:
    """Print without rich's Table, which would cut paths short where the terminal is narrow."""
    from rich.text import Text

    from ludus.cli.display.console import console

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
    from ludus.cli.display.formatting import format_count, format_dollars
    from ludus.cli.display.run_summary import format_reward

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
