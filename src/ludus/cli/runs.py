"""`ludus runs`: what has been collected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from ludus.data.run import RunFolder


def runs(
    root: Annotated[Path, typer.Argument(help="A folder with run folders in it.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List runs with their episodes, rewards and cost.

    Example: ludus runs
    """
    from ludus.data.run import find_runs
    from ludus.errors import RunError

    if not root.exists():
        raise RunError(f"There is no folder {root}. `ludus collect` makes runs; name their folder.")
    found = find_runs(root)
    if not found:
        raise RunError(f"No run is in {root} or below it. `ludus collect` makes one.")
    facts = [_facts(folder) for folder in found]
    if as_json:
        for fact in facts:
            typer.echo(json.dumps(fact, allow_nan=False))
    else:
        _print(facts)


def _facts(folder: RunFolder) -> dict[str, Any]:
    from ludus.rollout.review import review

    settings = folder.about.settings
    return {
        "run": str(folder.path),
        "created_at": folder.about.created_at.isoformat(),
        "environment": settings.get("environment", ""),
        "agent": settings.get("agent", {}),
        **review(folder),
    }


def _print(facts: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from ludus.cli.console import console
    from ludus.cli.figures import count, dollars
    from ludus.cli.summary import reward

    names = ("run", "environment", "agent", "episodes", "reward", "broken", "tokens", "cost")
    table = Table(box=None, header_style="bold")
    for name in names:
        words = name in ("environment", "agent")
        side: Literal["left", "right"] = "left" if words or name == "run" else "right"
        table.add_column(
            name, justify=side, overflow="fold" if words else "ignore", no_wrap=not words
        )
    for fact in facts:
        usage, agent = fact["usage"], fact["agent"]
        planned = f"/{fact['planned']:,}" if fact["left"] else ""
        tokens = usage["prompt_tokens"] + usage["completion_tokens"]
        table.add_row(
            Text(fact["run"], style="bold"),
            Text(str(fact["environment"])),
            Text(str(agent.get("model") or agent.get("provider", ""))),
            f"{fact['episodes']:,}{planned}",
            reward(fact),
            f"{fact['broken']:,}" if fact["broken"] else "",
            count(tokens) if tokens else "",
            dollars(usage["cost"]),
        )
    console().print(table)
