"""Uploads of run folders, data sets and trained models, for `ludus push` and --push-to-hub.

Each function shows its progress on a terminal and returns the URL of the repository.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError


def is_run(folder: Path) -> bool:
    from ludus.data.run_folder import RUN_FILE

    return (folder / RUN_FILE).is_file()


def run_files(folder: Path) -> list[str]:
    """The files of a run that are uploaded; records for OpenEnv are written with the upload."""
    from ludus.data.hub import OPENENV_RESULTS_FILE
    from ludus.publish.hub_upload import RUN_FILES

    return [name for name in RUN_FILES if name == OPENENV_RESULTS_FILE or (folder / name).is_file()]


def dataset_files(folder: Path) -> list[str]:
    """The files of a data set of `ludus curate`."""
    from ludus.curation.pipeline import DATASET_FILES
    from ludus.data.stage_output import CURATION_FILE

    if not (folder / CURATION_FILE).is_file():
        raise ConfigError(
            f"{folder} is neither a run of `ludus collect` nor a data set of `ludus curate`: it "
            f"has no run.json and no {CURATION_FILE}."
        )
    return sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and file.relative_to(folder).parts[0] in DATASET_FILES
    )


def push_run(folder: Path, repo_id: str, **options: Any) -> str:
    """Upload a run, as records of OpenEnv and as episodes."""
    from ludus.curation.formats.openenv import write_records
    from ludus.publish.hub_upload import push_folder

    write_records(folder)
    return _with_progress(push_folder, folder, repo_id, **options)


def push_dataset(folder: Path, repo_id: str, **options: Any) -> str:
    """Upload a data set of `ludus curate`."""
    from ludus.publish.hub_upload import push_folder

    return _with_progress(push_folder, folder, repo_id, files=dataset_files(folder), **options)


def push_trained_model(folder: Path, repo_id: str, **options: Any) -> str:
    """Upload the model in this folder."""
    from ludus.publish.model_upload import push_model

    card = build_upload_card(folder, repo_id)
    return _with_progress(push_model, folder, repo_id, card=card, **options)


def build_upload_card(folder: Path, repo_id: str) -> str:
    """The README.md of a model, with the repository as its title.

    One that the user wrote is kept; empty for a folder of another program that has none.
    """
    from ludus.train.output.model_card import build_model_card
    from ludus.train.output.record import read_record
    from ludus.train.output.training_folder import CARD_FILE

    file, record = folder / CARD_FILE, read_record(folder)
    card = file.read_text(encoding="utf-8-sig") if file.is_file() else ""
    if record is not None and card in ("", build_model_card(record, name=str(folder))):
        card = build_model_card(record, name=repo_id)
    return card


def _with_progress(push: Callable[..., str], *arguments: Any, **options: Any) -> str:
    from ludus.cli.display.status import status_callback

    try:
        with status_callback() as show:

            def show_bytes(sent: int, total: int) -> None:
                show("uploading, in MB", sent // 1_000_000, total // 1_000_000)

            return push(*arguments, progress=show_bytes, **options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "The upload was stopped; the same command sends the rest."
        ) from None
