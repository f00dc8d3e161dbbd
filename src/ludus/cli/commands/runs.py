"""`ludus runs`: what has been collected, and what GRPO has played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ludus.data.run_folder import RunFolder

_TEXT_COLUMNS = ("environment", "agent")
_MIN_TEXT_WIDTH = 11


def runs(
    root: Annotated[Path, typer.Argument(help="A folder with run folders in it.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List runs with their episodes, rewards and cost.

    Example: ludus runs
    """
    from ludus.errors import RunError

    if not root.exists():
        raise RunError(f"There is no folder {root}. `ludus collect` makes runs; name their folder.")
    found = _list_runs(root)
    if not found:
        raise RunError(f"No run is in {root} or below it. `ludus collect` makes one.")
    facts = [_describe_run(folder) for folder in found]
    if as_json:
        for fact in facts:
            typer.echo(json.dumps(fact, allow_nan=False))
    else:
        _print_table(facts)


def _list_runs(root: Path) -> list[RunFolder]:
    """Runs of both kinds, the oldest first."""
    from ludus.data.run_folder import find_runs, walk_folders

    played = [run for folder in walk_folders(root) if (run := _training_run(folder)) is not None]
    return sorted([*find_runs(root), *played], key=lambda run: (run.metadata.created_at, run.path))


def _training_run(folder: Path) -> RunFolder | None:
    """The episodes that a model was trained by, as a run; such a folder has no `run.json`."""
    if not ((folder / "training.json").is_file() and (folder / "episodes.jsonl").is_file()):
        return None

    from ludus.data.config_diff import config_digest
    from ludus.data.run_folder import RunFolder, RunMetadata
    from ludus.errors import RunError
    from ludus.train.output.record import read_record

    try:
        record = read_record(folder)
    except RunError:
        return None
    if record is None or record.environment is None:
        return None
    about = RunMetadata(
        kind=record.kind,
        created_at=record.created_at,
        digest=config_digest(record.settings),
        settings={"environment": record.environment.spec, "agent": {"model": record.model}},
        versions=record.versions,
    )
    return RunFolder(folder, about)


def _describe_run(folder: RunFolder) -> dict[str, Any]:
    from ludus.rollout.summary import summarize_run

    settings = folder.metadata.settings
    return {
        "run": str(folder.path),
        "created_at": folder.metadata.created_at.isoformat(),
        "environment": settings.get("environment", ""),
        "agent": settings.get("agent", {}),
        **summarize_run(folder),
    }


def _print_table(facts: list[dict[str, Any]]) -> None:
    """A table without rich's: it would rather cut a path short than let the terminal wrap it."""
    from rich.text import Text

    from ludus.cli.display.console import console

    out = console()
    rows = _fit_columns([_table_row(fact) for fact in facts], out.width)
    names = dict(zip(rows[0], rows[0], strict=True))
    widths = {name: max(len(row[name]) for row in [names, *rows]) for name in names}
    for row in [names, *rows]:
        cells = [
            cell.ljust(widths[name])
            if name in ("run", *_TEXT_COLUMNS)
            else cell.rjust(widths[name])
            for name, cell in row.items()
        ]
        line = Text("  ".join(cells).rstrip(), style="bold" if row is names else "")
        out.print(line, soft_wrap=True)


def _fit_columns(rows: list[dict[str, str]], width: int) -> list[dict[str, str]]:
    """Without columns that are empty throughout, and with words cut to what numbers leave them."""
    shown = [name for name in rows[0] if any(row[name] for row in rows)]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in shown}
    fixed = sum(widths[name] + 2 for name in shown if name not in _TEXT_COLUMNS)
    most = max(_MIN_TEXT_WIDTH, (width - fixed) // len(_TEXT_COLUMNS) - 2)
    return [
        {name: _truncate(row[name], most) if name in _TEXT_COLUMNS else row[name] for name in shown}
        for row in rows
    ]


def _truncate(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _table_row(fact: dict[str, Any]) -> dict[str, str]:
    """One line of the table."""
    from ludus.cli.display.formatting import format_count, format_dollars
    from ludus.cli.display.run_summary import format_reward

    usage, agent = fact["usage"], fact["agent"]
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    return {
        "run": str(fact["run"]),
        "environment": str(fact["environment"]),
        "agent": str(agent.get("model") or agent.get("provider", "")),
        "episodes": f"{fact['episodes']:,}" + (f"/{fact['planned']:,}" if fact["left"] else ""),
        "reward ± std. error": format_reward(fact),
        "broken": f"{fact['broken']:,}" if fact["broken"] else "",
        "tokens": format_count(tokens) if tokens else "",
        "cost": format_dollars(usage["cost"]),
    }
