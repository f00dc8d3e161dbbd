"""`ludus import`: other tools' rollouts as a run folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ludus.curation.importers.run_import import ImportReport

_MAX_LISTED_FILES = 5


class ImportFormat(StrEnum):
    OPENENV = "openenv"
    NEMO_GYM = "nemo-gym"
    VERIFIERS = "verifiers"
    INSPECT = "inspect"
    MESSAGES = "messages"


def import_rollouts(
    format: Annotated[ImportFormat, typer.Argument(metavar="FORMAT", help=", ".join(ImportFormat))],
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Files, or folders of them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="The run folder.", show_default="below runs/"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Bring rollouts of another tool into a run folder, for every other command to read.

    What cannot be read is named by file and line.

    Example: ludus import nemo-gym results/rollouts.jsonl -o runs/gym
    """
    from ludus.cli.display.progress_bar import progress_bar
    from ludus.curation.importers.run_import import import_files

    with progress_bar() as watch, _output_folder(out, f"{format}-{paths[0].stem}") as folder:
        made = import_files(
            format, paths, folder, on_episode=lambda done: watch("importing", done, None)
        )
    if as_json:
        told = {
            "folder": str(made.folder),
            "episodes": made.episodes,
            "scored": made.scored,
            "broken": made.broken,
            "unreadable": made.unreadable,
            "examples": made.examples,
            "not_read": [str(path) for path in made.unread_files],
        }
        typer.echo(json.dumps(told))
    else:
        _print_report(made)


@contextmanager
def _output_folder(out: Path | None, name: str) -> Iterator[Path]:
    """The folder that was named, or a new one below runs/, which goes if nothing comes into it."""
    from ludus.data.run_folder import create_unused_dir

    if out is not None:
        yield out
        return
    root = Path("runs")
    new, folder = not root.exists(), create_unused_dir(root / name)
    try:
        yield folder
    finally:
        for empty in (folder, root) if new else (folder,):
            if not any(empty.iterdir()):
                empty.rmdir()


def _print_report(made: ImportReport) -> None:
    from rich.text import Text

    from ludus.cli.display.console import console, escape_control_chars
    from ludus.cli.display.formatting import plural
    from ludus.curation.importers.run_import import UNREADABLE_FILE

    out, err = console(), console(stderr=True)
    for words in made.examples:
        err.print(Text(f"not read: {escape_control_chars(words)}", style="yellow"))
    if made.unreadable > len(made.examples):
        err.print(
            f"and {made.unreadable - len(made.examples):,} more: {made.folder / UNREADABLE_FILE}"
        )
    if made.unread_files:
        names = ", ".join(path.name for path in made.unread_files[:_MAX_LISTED_FILES])
        more = (
            f" and {len(made.unread_files) - _MAX_LISTED_FILES:,} more"
            if len(made.unread_files) > _MAX_LISTED_FILES
            else ""
        )
        err.print(Text(f"left alone, not in this format: {escape_control_chars(names)}{more}"))
    unscored = made.episodes - made.scored - made.broken
    told = [plural(made.episodes, "episode"), f"{made.scored:,} scored"]
    told += [f"{unscored:,} unscored"] if unscored else []
    told += [f"{made.broken:,} broken"] if made.broken else []
    told += [f"{made.unreadable:,} could not be read"] if made.unreadable else []
    out.print(Text(", ".join(told)))
    out.print(Text(f"run: {made.folder}"), soft_wrap=True)
