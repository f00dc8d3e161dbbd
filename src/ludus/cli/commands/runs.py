"""`ludus runs` and `ludus show`: list runs, and print an episode, a row or an evaluation."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from ludus.cli.common import newest_run, resolve_run_path
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


@command
def show_command(
    target: Annotated[
        list[str],
        Option(metavar="TARGET"),
        "Run (path, name or `last`), data set or evaluation; then the number or id of an episode "
        "or row (default 0).",
    ],
    *,
    as_json: Annotated[bool, Option(name="json"), "Print the line as it is stored."] = False,
) -> None:
    """Print the transcript of one episode, with its reward.

    Of a data set it prints a row, of an evaluation its metrics.

    Examples:

    ludus show last 17

    ludus show runs/wordle-1a2b3c4d 17

    ludus show data/wordle 3
    """
    from ludus.cli.display.eval_table import print_stored_evaluation
    from ludus.cli.display.transcript import (
        find_viewable_rows,
        print_row,
        print_transcript,
        read_row,
    )
    from ludus.data.episode_reader import find_episode, holds_episodes
    from ludus.data.run_folder import find_runs
    from ludus.data.stage_output import find_stage_output

    *names, last = target
    # The last word is the episode, unless it is the only one or a path.
    episode = last if names and (last.isdecimal() or not Path(last).exists()) else None
    paths = [resolve_run_path(name) for name in (target if episode is None else names)]
    path = paths[0]
    if len(paths) > 1:  # From a pattern of the shell.
        path = newest_run(paths)
        print(f"{len(paths)} paths given; showing the newest, {path}.", file=sys.stderr)
    file = path / "episodes.jsonl" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        output = find_stage_output(path)
        if output is not None and output.kind == "evaluation":
            if episode is not None:
                runs = [str(path / one["label"]) for one in output.record["candidates"]]
                commands = " or ".join(f"`ludus show {run} {episode}`" for run in runs)
                raise RunError(f"{path} is an evaluation. Choose a candidate: {commands}.")
            if as_json:
                print(json.dumps(output.record, ensure_ascii=False))
            else:
                print_stored_evaluation(path)
            return
        if (rows := find_viewable_rows(path)) is None:
            hint = "`ludus curate` writes data sets that can be shown."
            if held := find_runs(path):
                hint = f"It holds runs: `ludus show {held[-1].path}`, or `ludus runs {path}`."
            raise RunError(f"{path} is no run, data set in JSONL or evaluation. {hint}")
        file = rows
    if holds_episodes(file):
        record = find_episode(file, episode or "0")
        if as_json:
            print(record.to_line().decode().rstrip())
        else:
            print_transcript(record)
        return
    row = read_row(file, episode or "0")
    if as_json:
        print(json.dumps(row, ensure_ascii=False))
    else:
        print_row(file, episode or "0", row)
