"""`ludus import`: convert rollouts of other tools into a run folder."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.program import command
from ludus.options import Option, expand_path

if TYPE_CHECKING:
    from ludus.curation.formats.run_import import ImportReport

_MAX_LISTED_FILES = 5


class ImportFormat(StrEnum):
    OPENENV = "openenv"
    NEMO_GYM = "nemo-gym"
    VERIFIERS = "verifiers"
    MESSAGES = "messages"


@command
def import_(
    format: Annotated[
        ImportFormat,
        Option(metavar="FORMAT"),
        f"Format of the files: {', '.join(ImportFormat)}.",
    ],
    paths: Annotated[list[Path], Option(metavar="PATH"), "Files, or folders of files."],
    *,
    out: Annotated[
        Path | None,
        Option(
            "Output",
            name="output_dir",
            short="o",
            metavar="PATH",
            parse=expand_path,
            default="a new one in runs/",
        ),
        "Run folder to create.",
    ] = None,
    as_json: common.JsonObject = False,
) -> None:
    """Convert rollouts of another tool into a run folder, which all other commands can read.

    Lines that cannot be read are listed with file and line number.

    Example: ludus import nemo-gym results/rollouts.jsonl -o runs/gym
    """
    from ludus.cli.display.status import status_callback
    from ludus.curation.formats.run_import import import_files
    from ludus.data.run_folder import find_unused_dir

    folder = out or find_unused_dir(Path("runs") / f"{format}-{paths[0].stem}")
    with status_callback() as show:
        report = import_files(
            format, paths, folder, progress=lambda done: show("importing", done, None)
        )
    if as_json:
        fields = {
            "folder": str(report.folder),
            "episodes": report.episodes,
            "scored": report.scored,
            "broken": report.broken,
            "unreadable": report.unreadable,
            "examples": report.examples,
            "not_read": [str(path) for path in report.unread_files],
        }
        print(json.dumps(fields))
    else:
        _print_report(report)


def _print_report(report: ImportReport) -> None:
    from rich.text import Text

    from ludus.cli.display.console import console, escape_control_chars
    from ludus.cli.display.formatting import plural
    from ludus.curation.formats.run_import import UNREADABLE_FILE

    out, err = console(), console(stderr=True)
    for example in report.examples:
        err.print(Text(f"not read: {escape_control_chars(example)}", style="yellow"))
    if (hidden := report.unreadable - len(report.examples)) > 0:
        err.print(f"and {hidden:,} more: {report.folder / UNREADABLE_FILE}")
    if report.unread_files:
        names = ", ".join(path.name for path in report.unread_files[:_MAX_LISTED_FILES])
        hidden = len(report.unread_files) - _MAX_LISTED_FILES
        more = f" and {hidden:,} more" if hidden > 0 else ""
        err.print(Text(f"skipped, not in this format: {escape_control_chars(names)}{more}"))
    unscored = report.episodes - report.scored - report.broken
    counts = [plural(report.episodes, "episode"), f"{report.scored:,} scored"]
    counts += [f"{unscored:,} unscored"] if unscored else []
    counts += [f"{report.broken:,} broken"] if report.broken else []
    counts += [f"{report.unreadable:,} could not be read"] if report.unreadable else []
    out.print(Text(", ".join(counts)))
    out.print(Text(f"run: {report.folder}"), soft_wrap=True)
