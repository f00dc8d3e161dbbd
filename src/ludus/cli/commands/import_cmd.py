"""`ludus import`: convert rollouts of other tools into a run folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from ludus.cli import common
from ludus.cli.display.console import print_text
from ludus.cli.display.formatting import plural
from ludus.cli.flags import command
from ludus.options import Option


class ImportFormat(StrEnum):
    OPENENV = "openenv"
    NEMO_GYM = "nemo-gym"
    MESSAGES = "messages"


@command
def import_command(
    format: Annotated[
        ImportFormat,
        Option(metavar="FORMAT"),
        f"Format of the files: {', '.join(ImportFormat)}.",
    ],
    paths: Annotated[list[Path], Option(metavar="PATH"), "Files, or folders of files."],
    *,
    out: Annotated[
        Path | None,
        common.output_option("a new one in runs/"),
        "Run folder to create.",
    ] = None,
    as_json: common.JsonObject = False,
) -> None:
    """Convert rollouts of another tool into a run folder, which all other commands can read.

    Lines that cannot be read are listed with file and line number.

    Example: ludus import nemo-gym results/rollouts.jsonl -o runs/gym
    """
    from ludus.cli.display.status import status_callback
    from ludus.curation.formats.run_import import UNREADABLE_FILE, import_files
    from ludus.data.run_folder import find_unused_dir

    folder = out or find_unused_dir(Path("runs") / f"{format}-{paths[0].stem}")
    with status_callback() as show:
        report = import_files(
            format, paths, folder, progress=lambda done: show("importing", done, None)
        )
    if as_json:
        print(json.dumps(asdict(report), default=str))
        return
    for example in report.examples:
        print_text(f"not read: {example}", "yellow", stderr=True)
    if (hidden := report.unreadable - len(report.examples)) > 0:
        print_text(f"and {hidden:,} more: {report.folder / UNREADABLE_FILE}", stderr=True)
    if report.unread_files:
        names = ", ".join(path.name for path in report.unread_files)
        print_text(f"skipped, not in this format: {names}", stderr=True)
    counts = {
        "scored": report.scored,
        "unscored": report.episodes - report.scored - report.broken,
        "broken": report.broken,
        "could not be read": report.unreadable,
    }
    texts = [f"{count:,} {name}" for name, count in counts.items() if count or name == "scored"]
    print_text(", ".join([plural(report.episodes, "episode"), *texts]))
    print_text(f"run: {report.folder}")
