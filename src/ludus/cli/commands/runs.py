"""`ludus runs`: list runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from ludus.cli.display.console import print_table
from ludus.cli.display.formatting import format_count, format_dollars, format_reward
from ludus.cli.flags import command
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError
from ludus.options import Option, expand_path


@command
def runs_command(
    root: Annotated[Path, Option(parse=expand_path), "Folder that holds run folders."] = Path(
        "runs"
    ),
    *,
    as_json: Annotated[bool, Option(name="json"), "Print one JSON object per run."] = False,
) -> None:
    """List runs with their episodes, rewards and cost.

    Example: ludus runs
    """
    from ludus.data.run_folder import find_runs
    from ludus.rollout.stats import summarize_run

    if not root.exists():
        raise RunError(f"There is no folder {root}. `ludus collect` creates runs.")
    folders = list(find_runs(root))
    if not folders:
        raise RunError(f"There is no run in {root}. `ludus collect` creates one.")
    folders.sort(key=lambda run: (run.metadata.created_at, run.path))
    summaries: list[JsonObject] = [
        {
            "run": str(run.path),
            "kind": run.metadata.kind,
            "created_at": run.metadata.created_at.isoformat(),
            "environment": run.metadata.settings.get("environment", ""),
            "agent": run.metadata.settings.get("agent", {}),
            **summarize_run(run),
        }
        for run in folders
    ]
    if as_json:
        for summary in summaries:
            print(json.dumps(summary, allow_nan=False))
        return
    rows = []
    for summary in summaries:
        usage, agent = summary["usage"], summary["agent"]
        tokens = usage["prompt_tokens"] + usage["completion_tokens"]
        planned = f"/{summary['planned']:,}" if summary["remaining"] else ""
        row = {
            "run": summary["run"],
            "kind": summary["kind"],
            "environment": summary["environment"],
            "agent": str(agent.get("model") or agent.get("provider", "")),
            "episodes": f"{summary['episodes']:,}{planned}",
            "mean reward (95 % interval)": format_reward(summary),
            "broken": f"{summary['broken']:,}" if summary["broken"] else "",
            "tokens": format_count(tokens) if tokens else "",
            "cost": format_dollars(usage["cost"]),
        }
        rows.append(row)
    header = [name for name in rows[0] if any(row[name] for row in rows)]
    right = [name for name in header if name not in ("run", "kind", "environment", "agent")]
    print_table(header, ([row[name] for name in header] for row in rows), right=right)
