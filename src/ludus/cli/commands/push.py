"""`ludus push`: upload to the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated

import typer

from ludus.cli import common_options as common
from ludus.cli.commands.build import (
    BaseImage,
    OutputDir,
    PythonPackages,
    SystemPackages,
    write_context,
)
from ludus.cli.flag_names import FlagCommand

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Upload to the Hugging Face Hub.",
)


@app.callback()
def push() -> None:
    """Upload to the Hugging Face Hub."""


@app.command("env", cls=FlagCommand)
def push_env(
    spec: common.ServedSpec,
    repo_id: Annotated[str, typer.Argument(metavar="USER/NAME", help="Space to upload to.")],
    private: common.Private = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write the files and list them; upload nothing.")
    ] = False,
    out: OutputDir = None,
    base_image: BaseImage = None,
    system_packages: SystemPackages = None,
    python_packages: PythonPackages = None,
) -> None:
    """Upload an environment as a Space, which builds its image and serves it.

    Example: ludus push env wordle ada/wordle
    """
    from ludus.cli.command_line import end_if_checking, typed_command
    from ludus.publish.build_context import context_files
    from ludus.publish.env_space import push_space, space_server_url
    from ludus.publish.hub_upload import SPACE, check_login, check_upload_target

    check_upload_target(repo_id, SPACE)
    if not dry_run:
        check_login()
    end_if_checking()
    _, folder = write_context(spec, out, base_image, system_packages, python_packages)
    if dry_run:
        files = context_files(folder)
        size = sum((folder / name).stat().st_size for name in files)
        for name in files:
            typer.echo(name)
        typer.echo(f"{len(files)} files, {size / 1e6:.1f} MB, in {folder}; nothing was uploaded.")
        return
    url = push_space(folder, repo_id, private=private, retry_command=typed_command())
    typer.echo(f"Space: {url}")
    typer.echo(f"  ludus check {space_server_url(repo_id)}")
