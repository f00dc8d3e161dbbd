"""`ludus push`: upload to the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.commands.build import (
    BaseImage,
    OutputDir,
    PythonPackages,
    SystemPackages,
    write_context,
)
from ludus.cli.program import command
from ludus.options import Option, expand_path

if TYPE_CHECKING:
    from ludus.publish.hub_upload import RepoKind

_LUDUS_SOURCES = "src/ludus/"


@command
def push_env(
    spec: common.ServedSpec,
    repo_id: Annotated[str, Option(metavar="USER/NAME"), "Space to upload to."],
    *,
    private: common.Private = False,
    dry_run: Annotated[
        bool, Option(name="dry_run"), "Write the files and list them; upload nothing."
    ] = False,
    out: OutputDir = None,
    base_image: BaseImage = None,
    system_packages: SystemPackages = None,
    python_packages: PythonPackages = None,
) -> None:
    """Upload an environment as a Space, which builds its image and serves it.

    Example: ludus push env wordle ada/wordle
    """
    from ludus.cli.command_line import typed_command
    from ludus.publish.build_context import context_files, push_space, space_server_url
    from ludus.publish.hub_upload import SPACE

    _check_upload(repo_id, SPACE, dry_run=dry_run)
    _, folder = write_context(spec, out, base_image, system_packages, python_packages)
    _print_plan(folder, context_files(folder), repo_id, private=private, dry_run=dry_run)
    if dry_run:
        return
    url = push_space(folder, repo_id, private=private, retry_command=typed_command())
    print(f"Space: {url}")
    print(f"  ludus check {space_server_url(repo_id)}")


@command
def push_dataset(
    source: Annotated[
        str,
        Option(metavar="RUN_OR_DATA"),
        "Run of `ludus collect` (path, name or last), or data set of `ludus curate`.",
    ],
    repo_id: Annotated[str, Option(metavar="USER/NAME"), "Data set to upload to."],
    *,
    private: common.Private = False,
    dry_run: common.DryRun = False,
) -> None:
    """Upload a run or a curated data set, which `load_dataset` reads.

    Large files that have arrived are not sent again: after an interruption, the same command sends
    the rest.

    Examples: ludus push dataset runs/wordle ada/wordle-rollouts --private;
    ludus push dataset data/wordle ada/wordle-sft
    """
    from ludus.cli import hub_uploads
    from ludus.cli.command_line import typed_command
    from ludus.cli.run_lookup import resolve_run_path
    from ludus.publish.hub_upload import DATASET
    from ludus.publish.run_card import CARD_FILE

    _check_upload(repo_id, DATASET, dry_run=dry_run)
    folder = _check_folder(resolve_run_path(source))
    is_run = hub_uploads.is_run(folder)
    files = hub_uploads.run_files(folder) if is_run else hub_uploads.dataset_files(folder)
    if dry_run:
        _print_plan(folder, [*files, CARD_FILE], repo_id, private=private)
        return
    upload = hub_uploads.push_run if is_run else hub_uploads.push_dataset
    url = upload(folder, repo_id, private=private, retry_command=typed_command())
    print(f"Data set: {url}")


@command
def push_model(
    model: Annotated[
        Path,
        Option(metavar="MODEL", parse=expand_path),
        "Folder of a trained model.",
    ],
    repo_id: Annotated[str, Option(metavar="USER/NAME"), "Model to upload to."],
    *,
    private: common.Private = False,
    dry_run: common.DryRun = False,
) -> None:
    """Upload a trained model with its card; checkpoints and episodes stay here.

    Large files that have arrived are not sent again: after an interruption, the same command sends
    the rest.

    Example: ludus push model models/wordle ada/wordle-player --private
    """
    from ludus.cli.command_line import typed_command
    from ludus.cli.hub_uploads import build_upload_card, push_trained_model
    from ludus.publish.hub_upload import MODEL
    from ludus.publish.model_upload import check_model_folder, model_files
    from ludus.publish.run_card import CARD_FILE

    _check_upload(repo_id, MODEL, dry_run=dry_run)
    check_model_folder(_check_folder(model))
    if dry_run:
        card = [CARD_FILE] if build_upload_card(model, repo_id) else []
        _print_plan(model, [*sorted(model_files(model)), *card], repo_id, private=private)
        return
    url = push_trained_model(model, repo_id, private=private, retry_command=typed_command())
    print(f"Model: {url}")


def _check_upload(repo_id: str, kind: RepoKind, *, dry_run: bool) -> None:
    """Check the name and, unless it is a dry run, the login; the last step of checking options."""
    from ludus.cli.command_line import end_if_checking
    from ludus.publish.hub_upload import check_login, check_upload_target

    check_upload_target(repo_id, kind)
    if not dry_run:
        check_login()
    end_if_checking()


def _check_folder(folder: Path) -> Path:
    from ludus.errors import ConfigError

    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(f"{folder} {problem}. Give a folder to upload.")
    return folder


def _print_plan(
    folder: Path, files: Sequence[str], repo_id: str, *, private: bool, dry_run: bool = True
) -> None:
    """The files of an upload; those of Ludus itself are one line.

    A file that the upload writes has no size yet.
    """
    from ludus.cli.display.formatting import format_size

    total, ludus_total, ludus_count, files = 0, 0, 0, list(dict.fromkeys(files))
    for name in files:
        file = folder / name
        size = file.stat().st_size if file.is_file() else None
        total += size or 0
        if name.startswith(_LUDUS_SOURCES):
            ludus_total, ludus_count = ludus_total + (size or 0), ludus_count + 1
            continue
        print(f"{'new' if size is None else format_size(size):>10}  {name}")
    if ludus_count:
        print(f"{format_size(ludus_total):>10}  {_LUDUS_SOURCES} ({ludus_count} files)")
    visibility = "private" if private else "public, unless the account makes repositories private"
    print(
        f"{len(files)} files, {format_size(total)}, from {folder} to {repo_id} ({visibility})"
        + ("; nothing was uploaded." if dry_run else ".")
    )
