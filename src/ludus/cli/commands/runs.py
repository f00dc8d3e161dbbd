"""`ludus runs`: list the runs of `ludus collect` and `ludus train grpo`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli.program import command
from ludus.options import Option, expand_path

if TYPE_CHECKING:
    from ludus.data.run_folder import RunFolder


@command
def runs(
    root: Annotated[Path, Option(parse=expand_path), "Folder that holds run folders."] = Path(
        "runs"
    ),
    *,
    as_json: Annotated[bool, Option(name="json"), "Print one JSON object per run."] = False,
) -> None:
    """List runs with their episodes, rewards and cost.

    Example: ludus runs
    """
    from ludus.cli.display.runs_table import print_runs
    from ludus.data.run_folder import find_runs
    from ludus.errors import RunError
    from ludus.rollout.stats import summarize_run

    if not root.exists():
        raise RunError(f"There is no folder {root}. `ludus collect` creates runs.")
    folders = [*find_runs(root), *_training_runs(root)]
    if not folders:
        raise RunError(f"There is no run in {root}. `ludus collect` creates one.")
    folders.sort(key=lambda run: (run.metadata.created_at, run.path))
    summaries = [
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
    else:
        print_runs(summaries)


def _training_runs(root: Path) -> Iterator[RunFolder]:
    """The episodes of GRPO trainings, as runs: their folders have no `run.json`."""
    from ludus.data.config import config_digest
    from ludus.data.run_folder import RunFolder, RunMetadata, walk_run_folders
    from ludus.errors import RunError

    for folder in walk_run_folders(root):
        if not ((folder / "training.json").is_file() and (folder / "episodes.jsonl").is_file()):
            continue
        from ludus.train.output.record import read_record

        try:
            record = read_record(folder)
        except RunError:
            continue
        if record is not None and record.environment is not None:
            metadata = RunMetadata(
                kind=record.kind,
                created_at=record.created_at,
                digest=config_digest(record.settings),
                settings={"environment": record.environment.spec, "agent": {"model": record.model}},
                versions=record.versions,
            )
            yield RunFolder(folder, metadata)
