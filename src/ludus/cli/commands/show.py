"""`ludus show`: print one episode, row, evaluation or training."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli.program import command
from ludus.options import Option

if TYPE_CHECKING:
    from ludus.errors import RunError


@command
def show(
    target: Annotated[
        list[str],
        Option(metavar="TARGET"),
        "Run (path, name or `last`), data set, evaluation or trained model; then the "
        "number or id of an episode or row (default 0).",
    ],
    *,
    as_json: Annotated[bool, Option(name="json"), "Print the line as it is stored."] = False,
) -> None:
    """Print the transcript of one episode, with its reward.

    Of a data set it prints a row, of an evaluation its metrics, of a trained model its training.

    Examples:

    ludus show last 17

    ludus show runs/wordle-1a2b3c4d 17

    ludus show data/wordle 3
    """
    from ludus.cli.run_lookup import newest_run, resolve_run_path

    *names, last = target
    # The last word is the episode, unless it is the only one or a path.
    episode = last if names and (last.isdecimal() or not Path(last).exists()) else None
    paths = [resolve_run_path(name) for name in (target if episode is None else names)]
    path = paths[0]
    if len(paths) > 1:  # From a pattern of the shell.
        path = newest_run(paths)
        other = next(each for each in paths if each != path)
        again = " ".join(["ludus show", str(other), *([episode] if episode else [])])
        note = f"{len(paths)} paths given; showing the newest, {path}. Another: {again}"
        print(note, file=sys.stderr)
    _show_path(path, episode, as_json=as_json)


def _show_path(path: Path, episode: str | None, *, as_json: bool) -> None:
    from ludus.cli.display.console import console
    from ludus.cli.display.row_view import find_viewable_rows, print_row, read_row
    from ludus.cli.display.training_record_view import print_training_record
    from ludus.cli.display.transcript import print_transcript
    from ludus.data.episode_reader import find_episode, holds_episodes

    file = path / "episodes.jsonl" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        if _show_evaluation(path, episode, as_json=as_json):
            return
        rows = find_viewable_rows(path)
        if rows is None:
            if not print_training_record(console(), path):
                raise _nothing_to_show(path)
            return
        file = rows
    if holds_episodes(file):
        record = find_episode(file, episode or "0")
        if as_json:
            print(record.to_line().decode().rstrip())
        else:
            print_transcript(console(), record)
        return
    row = read_row(file, episode or "0")
    if as_json:
        print(json.dumps(row, ensure_ascii=False))
    else:
        print_row(console(), file, episode or "0", row)


def _show_evaluation(path: Path, episode: str | None, *, as_json: bool) -> bool:
    """Print the evaluation in this folder; False if there is none."""
    from ludus.cli.display.console import console
    from ludus.cli.display.eval_table import print_stored_evaluation
    from ludus.data.stage_output import find_output
    from ludus.errors import RunError

    output = find_output(path)
    if output is None or output.kind != "evaluation":
        return False
    if episode is not None:
        runs = [str(path / one["label"]) for one in output.record["candidates"]]
        commands = " or ".join(f"`ludus show {run} {episode}`" for run in runs)
        raise RunError(f"{path} is an evaluation. Choose a candidate: {commands}.")
    if as_json:
        print(json.dumps(output.record, ensure_ascii=False))
    else:
        print_stored_evaluation(console(), path)
    return True


def _nothing_to_show(path: Path) -> RunError:
    """An error that says what the folder holds instead, and what to type."""
    from ludus.data.run_folder import find_runs
    from ludus.errors import RunError

    if any(path.glob("*.parquet")) or (path / "dataset_dict.json").is_file():
        return RunError(
            f"{path} is a data set, but not in JSONL. `ludus curate` writes one that can be shown."
        )
    if runs := find_runs(path):
        return RunError(
            f"{path} is a folder of runs. Choose one, such as `ludus show {runs[-1].path}`; "
            f"`ludus runs {path}` lists them."
        )
    return RunError(f"{path} cannot be shown: it is no run, data set, evaluation or trained model.")
