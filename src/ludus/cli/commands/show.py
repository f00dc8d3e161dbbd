"""`ludus show`: print an episode, a row or an evaluation."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from ludus.cli.common import newest_run, resolve_run_path
from ludus.cli.flags import command
from ludus.errors import RunError
from ludus.options import Option


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
