"""`ludus curate`: select episodes and write them as training rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from ludus.cli import common
from ludus.cli.command_line import end_if_checking, typed_command
from ludus.cli.program import command
from ludus.cli.run_lookup import resolve_run_path
from ludus.curation.config import CurateConfig
from ludus.options import Option, expand_path


@command
def curate(
    runs: Annotated[
        list[str],
        Option(metavar="RUN"),
        "Run folders, their names in runs/, `last`, or episodes.jsonl files.",
    ],
    *,
    out: Annotated[
        Path,
        Option("Output", name="output_dir", short="o", metavar="OUT", parse=expand_path),
        "Folder for the data set.",
    ],
    config: CurateConfig,
    explain: Annotated[
        bool,
        Option("Output", hidden=True),
        "Write left_out.jsonl with the reason for each removed episode.",
    ] = False,
    overwrite: common.Overwrite = False,
    push_to_hub: common.Push = None,
    as_json: common.JsonObject = False,
) -> None:
    """Select episodes and write them as rows for SFT, DPO or another tool.

    Broken and unscored episodes and exact copies are removed. The report, and the data set's card,
    say how many episodes each step removed.

    Examples:

    ludus curate runs/wordle --to sft --min-reward 0.8 --test-size 0.1 -o data/wordle

    ludus curate runs/a runs/b --to dpo --pairs all --min-margin 0.3 -o data/pairs
    """
    from ludus.cli.display.curate_report import print_curate_report
    from ludus.cli.display.status import status_callback
    from ludus.curation import pipeline

    if push_to_hub is not None:
        push_to_hub.check()
    end_if_checking()
    with status_callback() as progress:
        report = pipeline.curate(
            [resolve_run_path(run) for run in runs],
            out,
            config,
            overwrite=overwrite,
            explain=explain,
            location=push_to_hub.repo_id if push_to_hub is not None else None,
            command=typed_command(),
            progress=progress,
        )
    if as_json:
        print(json.dumps({"folder": str(out), **report.as_json()}, allow_nan=False))
    else:
        print_curate_report(out, report)
    if push_to_hub is not None:
        from ludus.cli.hub_uploads import push_dataset

        again = typed_command() if overwrite else f"{typed_command()} --overwrite"
        url = push_dataset(
            out, push_to_hub.repo_id, private=push_to_hub.private, retry_command=again
        )
        print(json.dumps({"event": "pushed", "url": url}) if as_json else f"Data set: {url}")
